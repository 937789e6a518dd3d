//! What the attribute costs the compiler: 200 annotated handlers against the same 200 that open and commit the
//! transaction themselves.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::package;

const HANDLERS: usize = 200;
const ROUNDS: usize = 5;

/// Takes a minute and an otherwise idle machine: `cargo test -p idem-tests --test ui -- --ignored --nocapture`.
#[test]
#[ignore = "measures time, so it needs an idle machine"]
fn two_hundred_handlers_take_at_most_two_fifths_longer() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("ui/compile-time");
    fs::create_dir_all(&folder).unwrap();
    let plain = folder.join("plain.rs");
    let annotated = folder.join("annotated.rs");
    fs::write(&plain, program(plain_handler)).unwrap();
    fs::write(&annotated, program(annotated_handler)).unwrap();
    let manifest = package::write("compile-time", "2024", "idem-runtime", &[plain.clone(), annotated.clone()]);
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..=ROUNDS {
        for (program, times) in [&plain, &annotated].into_iter().zip(&mut times) {
            times.push(check(&manifest, program));
        }
    }
    // The first round compiles the dependencies too.
    let [plain, annotated] = times.map(|times| median(&times[1..]));
    let ratio = annotated.as_secs_f64() / plain.as_secs_f64();
    println!("plain {plain:.2?}, annotated {annotated:.2?}, ratio {ratio:.2}");
    assert!(ratio <= 1.4, "plain {plain:.2?}, annotated {annotated:.2?}, ratio {ratio:.2}");
}

fn check(manifest: &Path, program: &Path) -> Duration {
    // A new time of change is enough to have it checked anew, as a whole and not only where it changed.
    fs::write(program, fs::read(program).unwrap()).unwrap();
    let name = program.file_stem().unwrap().to_str().unwrap();
    let start = Instant::now();
    let output = package::cargo("check", manifest).args(["--bin", name]).env("CARGO_INCREMENTAL", "0").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    start.elapsed()
}

fn median(times: &[Duration]) -> Duration {
    let mut times = times.to_vec();
    times.sort();
    times[times.len() / 2]
}

fn program(handler: fn(usize) -> String) -> String {
    let application = Path::new(env!("CARGO_MANIFEST_DIR")).join("ui/application.rs");
    let mut program =
        format!("#![allow(unused_imports)]\n#[path = {application:?}]\nmod application;\nuse application::*;\n");
    for number in 0..HANDLERS {
        program.push_str(&handler(number));
    }
    program.push_str("fn main() {\n    let mut router: Router<AppState> = Router::new();\n");
    for number in 0..HANDLERS {
        writeln!(program, "    router = router.route(\"/{number}\", post(handler_{number}));").unwrap();
    }
    program.push_str("    drop(router);\n}\n");
    program
}

fn plain_handler(number: usize) -> String {
    format!(
        r#"
async fn handler_{number}(
    tenant: Tenant,
    Extension(pool): Extension<sqlx::PgPool>,
    Json(new): Json<NewOrder>,
) -> Result<(StatusCode, Json<Order>), ApiError> {{
    let mut tx = pool.begin().await?;
    let id = sqlx::query_scalar("INSERT INTO orders_{number} VALUES ($1, $2) RETURNING id")
        .bind(tenant.id)
        .bind(new.total)
        .fetch_one(&mut *tx)
        .await?;
    tx.commit().await?;
    Ok((StatusCode::CREATED, Json(Order {{ id }})))
}}
"#
    )
}

fn annotated_handler(number: usize) -> String {
    format!(
        r#"
#[idempotent(scope = tenant.id, ttl = "24h")]
async fn handler_{number}(
    tenant: Tenant,
    tx: &mut Tx,
    Json(new): Json<NewOrder>,
) -> Result<(StatusCode, Json<Order>), ApiError> {{
    let id = sqlx::query_scalar("INSERT INTO orders_{number} VALUES ($1, $2) RETURNING id")
        .bind(tenant.id)
        .bind(new.total)
        .fetch_one(&mut *tx)
        .await?;
    Ok((StatusCode::CREATED, Json(Order {{ id }})))
}}
"#
    )
}
