//! Whoever may create functions in a schema of the search path must not have them run by the application or by whoever migrates.

use axum::extract::FromRef;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use idem_runtime::{Error, Idempotency, Operation, Status, Tx, idempotent};
use idem_testing::TestDatabase;
use idem_tests::{Reply, Tenant, request};
use sqlx::AssertSqlSafe;
use sqlx::postgres::PgPoolOptions;
use tower::ServiceExt;

#[derive(Debug)]
struct Failed(StatusCode);

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self(error.into_response().status())
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        self.0.into_response()
    }
}

async fn write(tx: &mut Tx) -> Result<(), Failed> {
    let written = sqlx::query("INSERT INTO public.entries (text) VALUES ('hostile')").execute(tx).await;
    written.map(drop).map_err(|_| Failed(StatusCode::IM_A_TEAPOT))
}

#[idempotent(scope = tenant.id, ttl = "24h", key = optional)]
async fn in_transaction(tenant: Tenant, tx: &mut Tx, Json(status): Json<u16>) -> Result<StatusCode, Failed> {
    write(tx).await?;
    Ok(StatusCode::from_u16(status).expect("a status"))
}

#[idempotent(scope = tenant.id, ttl = "24h", lease = "1s")]
async fn in_steps(tenant: Tenant, op: &mut Operation, Json(status): Json<u16>) -> Result<StatusCode, Failed> {
    op.transaction("first", async |tx| write(tx).await).await?;
    op.step("call", async |_key| Ok::<_, Failed>(1)).await?;
    op.transaction("later", async |tx| write(tx).await).await?;
    Ok(StatusCode::from_u16(status).expect("a status"))
}

#[idempotent(scope = "functions", key = id, ttl = "24h")]
async fn function(idempotency: &Idempotency, tx: &mut Tx, id: String) -> Result<i64, Failed> {
    write(tx).await?;
    Ok(1)
}

#[derive(Clone, FromRef)]
struct AppState {
    idempotency: Idempotency,
}

/// The name of every function and operator that our statements use.
fn used() -> (Vec<String>, Vec<&'static str>) {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../idem-runtime");
    let files = ["statements/mod.rs", "statements/mark.rs", "statements/steps.rs", "statements/claim.rs", "schema.rs"];
    let mut source: String =
        files.map(|file| std::fs::read_to_string(format!("{folder}/src/postgres/{file}")).expect(file)).concat();
    source += &std::fs::read_to_string(format!("{folder}/src/postgres/statements/literal.rs")).expect("literals");
    let mut names: Vec<String> = source
        .split(|letter: char| !letter.is_ascii_lowercase() && letter != '_' && letter != '(')
        .filter_map(|word| word.split_once('(').map(|(name, _)| name.to_owned()))
        .filter(|name| name.len() > 2)
        .collect();
    names.sort();
    names.dedup();
    (names, vec!["=", "<>", "<=", "<", ">>", ">", ">=", "+", "-", "*", "/", "||", "&"])
}

/// Exact overloads of each, and inexact ones over every pair of ordinary types, that count that they ran and fail.
async fn surround(pool: &sqlx::PgPool) {
    let (names, operators) = used();
    let sql = format!(
        "CREATE SEQUENCE public.hostile; GRANT ALL ON SEQUENCE public.hostile TO PUBLIC;
         DO $do$
         DECLARE
             of record; a text; b text; name text; operator text;
             types text[] := ARRAY['text','varchar','name','int2','int4','int8','numeric','float8','bytea','oid','bool','interval','timestamptz','xid','tid'];
             body text := 'LANGUAGE plpgsql AS $f$ BEGIN PERFORM pg_catalog.nextval(''public.hostile''); RAISE EXCEPTION ''hostile''; END $f$';
         BEGIN
             FOR of IN SELECT proname, pg_get_function_identity_arguments(oid) AS arguments FROM pg_proc
                       WHERE proname = ANY ('{{{names}}}') AND pronamespace = 'pg_catalog'::regnamespace AND prokind <> 'w' LOOP
                 BEGIN
                     EXECUTE format('CREATE FUNCTION public.%I(%s) RETURNS int %s', of.proname, of.arguments, body);
                 EXCEPTION WHEN OTHERS THEN NULL;
                 END;
             END LOOP;
             FOR name IN SELECT DISTINCT proname FROM pg_proc
                         WHERE proname = ANY ('{{{names}}}') AND pronamespace = 'pg_catalog'::regnamespace LOOP
                 FOREACH a IN ARRAY types LOOP
                     BEGIN
                         EXECUTE format('CREATE FUNCTION public.%I(secs %s) RETURNS int %s', name, a, body);
                     EXCEPTION WHEN duplicate_function THEN NULL;
                     END;
                     FOREACH b IN ARRAY types LOOP
                         BEGIN
                             EXECUTE format('CREATE FUNCTION public.%I(%s, %s) RETURNS int %s', name, a, b, body);
                         EXCEPTION WHEN duplicate_function THEN NULL;
                         END;
                     END LOOP;
                 END LOOP;
             END LOOP;
             FOREACH a IN ARRAY types LOOP
                 FOREACH b IN ARRAY types LOOP
                     EXECUTE format('CREATE FUNCTION public.hostile_operator(%s, %s) RETURNS bool %s', a, b, body);
                     FOREACH operator IN ARRAY '{{{operators}}}'::text[] LOOP
                         EXECUTE format('CREATE OPERATOR public.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = public.hostile_operator)',
                                        operator, a, b);
                     END LOOP;
                 END LOOP;
                 EXECUTE format('CREATE FUNCTION public.hostile_operator(%s) RETURNS bool %s', a, body);
                 EXECUTE format('CREATE OPERATOR public.- (RIGHTARG = %s, FUNCTION = public.hostile_operator)', a);
             END LOOP;
         END $do$;",
        names = names.join(","),
        operators = operators.join(","),
    );
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(pool).await.expect("the overloads");
    let made: i64 = sqlx::query_scalar("SELECT pg_catalog.count(DISTINCT proname) FROM pg_catalog.pg_proc WHERE pronamespace OPERATOR(pg_catalog.=) 'public'::pg_catalog.regnamespace")
        .fetch_one(pool)
        .await
        .expect("a count");
    assert!(made > 12, "{made} of {names:?}");
}

/// The test can fail: an unqualified call on this path is counted.
async fn control(setup: &sqlx::PgPool, options: sqlx::postgres::PgConnectOptions) {
    let hostile = PgPoolOptions::new().connect_lazy_with(options);
    sqlx::raw_sql("SELECT make_interval(secs => '1'::text)").execute(&hostile).await.expect_err("an overload");
    assert!(ran(setup).await, "an unqualified call is counted");
    sqlx::raw_sql("SELECT pg_catalog.setval('public.hostile', 1, false)").execute(setup).await.expect("a new count");
}

async fn ran(setup: &sqlx::PgPool) -> bool {
    sqlx::query_scalar("SELECT is_called FROM public.hostile").fetch_one(setup).await.expect("a flag")
}

async fn send(router: &Router, path: &str, key: Option<&str>, status: u16) -> Reply {
    let mut headers = vec![("tenant", "a")];
    headers.extend(key.map(|key| ("idempotency-key", key)));
    Reply::of(router.clone().oneshot(request(path, &headers, &status)).await.expect("an answer")).await
}

async fn attack(search_path: &str, role: Option<&str>) {
    let database = TestDatabase::create().await.expect("a database");
    let setup = database.pool();
    idem_tests::create_tables(&setup).await;
    surround(&setup).await;
    let options = || database.connect_options().options([("search_path", search_path)]);
    control(&setup, options()).await;
    let migrating = PgPoolOptions::new().connect_lazy_with(options());
    let idempotency = Idempotency::new(migrating);
    for _ in 0..2 {
        idempotency.migrate().await.expect("the migrations");
    }
    let options = match role {
        None => options(),
        Some(role) => {
            let role = format!("{}_{role}", database.name());
            let grants = format!(
                "CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA idem TO {role}; \
                 GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA idem TO {role}; \
                 GRANT SELECT, INSERT ON entries TO {role}; GRANT USAGE ON SEQUENCE entries_id_seq TO {role}"
            );
            sqlx::raw_sql(AssertSqlSafe(grants)).execute(&setup).await.expect("the grants");
            options().username(&role)
        }
    };
    let idempotency = Idempotency::builder(PgPoolOptions::new().connect_lazy_with(options))
        .recovery_interval(std::time::Duration::from_millis(20))
        .build()
        .expect("settings");
    let router = Router::new()
        .route("/transaction", post(in_transaction))
        .route("/steps", post(in_steps))
        .with_state(AppState { idempotency: idempotency.clone() });
    for path in ["/transaction", "/steps"] {
        for status in [201, 409, 500] {
            let key = format!("{path}-{status}");
            for attempt in 0..2 {
                let reply = send(&router, path, Some(&key), status).await;
                assert_eq!(reply.status, status, "{search_path} {path} {attempt} {reply:?}");
                assert_eq!(reply.replayed(), attempt == 1 && status != 500, "{search_path} {path} {status} {attempt}");
            }
        }
    }
    for status in [201, 409, 500] {
        assert_eq!(send(&router, "/transaction", None, status).await.status, status);
    }
    for _ in 0..2 {
        function(&idempotency, "f".to_owned()).await.expect("the function");
    }
    let completed = idempotency.status("a", "/transaction-201").await.expect("a status");
    assert!(matches!(completed, Status::Completed { status: 201 }), "{completed:?}");
    // What `/steps` gave back is sent again until it is for a person.
    let completer = idempotency.completer(router);
    tokio::time::timeout(std::time::Duration::from_secs(20), async {
        while completer.resent() == 0 {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    })
    .await
    .expect("sent again");
    completer.stop().await;
    let failed = "UPDATE idem.idempotency_keys SET failure = 'given up', lease_expires_at = pg_catalog.now() WHERE status IS NULL";
    sqlx::raw_sql(failed).execute(&setup).await.expect("given up");
    let failed = idempotency.failed_operations(10).await.expect("a list").remove(0);
    assert!(idempotency.retry_failed(&failed).await.expect("a retry"));
    assert!(!idempotency.discard_failed(&failed).await.expect("not failed any more"));
    assert_eq!(idempotency.sweep().await.expect("a sweep"), 0);
    assert!(!ran(&setup).await, "{search_path} {role:?}: an overload ran");
    if let Some(role) = role {
        let role = format!("{}_{role}", database.name());
        let dropped = format!("DROP OWNED BY {role}; DROP ROLE {role}");
        sqlx::raw_sql(AssertSqlSafe(dropped)).execute(&setup).await.expect("the role dropped");
    }
}

#[tokio::test]
async fn no_overload_runs_whatever_the_search_path_says() {
    attack("public, pg_catalog", None).await;
    attack("public, pg_catalog", Some("narrow")).await;
}

#[tokio::test]
async fn no_better_match_runs_on_the_default_search_path() {
    attack("\"$user\", public", Some("narrow")).await;
}
