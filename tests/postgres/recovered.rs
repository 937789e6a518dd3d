//! What is sent again belongs to whom it belonged to, wherever the database stands: its owner exactly, or nobody.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::{FromRef, FromRequestParts, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use idem_runtime::{Error, Idempotency, Operation, Recovered, idempotent};
use idem_testing::TestDatabase;
use idem_tests::{Reply, request};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tower::ServiceExt;

/// A company and one of its people.
struct User {
    company: String,
    name: String,
}

#[derive(Clone, FromRef)]
struct AppState {
    idempotency: Idempotency,
    node: Arc<Node>,
}

#[derive(Default)]
struct Node {
    failing: AtomicU32,
    runs: AtomicU32,
    /// What `Recovered` said, as (scope, parts).
    seen: Mutex<Vec<(String, Vec<String>)>>,
    /// Whom the authentication takes a recovered request for, where it is wrong.
    mistaken: Mutex<Option<String>>,
}

impl FromRequestParts<AppState> for User {
    type Rejection = StatusCode;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, StatusCode> {
        if let Some(recovered) = parts.extensions.get::<Recovered>() {
            let found = recovered.parts().to_vec();
            state.node.seen.lock().unwrap().push((recovered.scope().to_owned(), found.clone()));
            let company = found[0].clone();
            let name = found.get(1).cloned().unwrap_or_default();
            let company = state.node.mistaken.lock().unwrap().clone().unwrap_or(company);
            return Ok(Self { company, name });
        }
        let header = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let company = header("company").ok_or(StatusCode::UNAUTHORIZED)?;
        Ok(Self { company, name: header("name").unwrap_or_default() })
    }
}

#[derive(Debug)]
enum Failed {
    Once,
    Idempotency(Error),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self::Idempotency(error)
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        match self {
            Self::Once => StatusCode::BAD_GATEWAY.into_response(),
            Self::Idempotency(error) => error.into_response(),
        }
    }
}

async fn work(op: &mut Operation, node: &Node) -> Result<StatusCode, Failed> {
    node.runs.fetch_add(1, Ordering::SeqCst);
    op.transaction("write", async |tx| {
        let written = sqlx::query("INSERT INTO entries (text) VALUES ('written')").execute(tx).await;
        written.map(drop).map_err(|_| Failed::Once)
    })
    .await?;
    op.step("call", async |_key| Ok::<_, Failed>(1)).await?;
    if node.failing.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok() {
        return Err(Failed::Once);
    }
    Ok(StatusCode::CREATED)
}

#[idempotent(scope = user.company, ttl = "24h", lease = "1s")]
async fn of_one(user: User, State(node): State<Arc<Node>>, op: &mut Operation) -> Result<StatusCode, Failed> {
    work(op, &node).await
}

#[idempotent(scope = (user.company, user.name), ttl = "24h", lease = "1s")]
async fn of_two(user: User, State(node): State<Arc<Node>>, op: &mut Operation) -> Result<StatusCode, Failed> {
    work(op, &node).await
}

async fn start(settings: &[(&str, &str)]) -> (TestDatabase, PgPool, AppState, Router) {
    let database = TestDatabase::create().await.expect("a database");
    let setup = database.pool();
    idem_tests::create_tables(&setup).await;
    Idempotency::new(setup.clone()).migrate().await.expect("the migrations");
    let options = database.connect_options().options(settings.iter().copied());
    let builder = Idempotency::builder(PgPoolOptions::new().connect_lazy_with(options));
    let idempotency = builder.recovery_interval(Duration::from_millis(20)).build().expect("settings");
    let state = AppState { idempotency, node: Arc::default() };
    let router = Router::new().route("/one", post(of_one)).route("/two", post(of_two)).with_state(state.clone());
    (database, setup, state, router)
}

async fn post_as(router: &Router, path: &str, company: &str, name: &str) -> Reply {
    let headers = [("company", company), ("name", name), ("idempotency-key", "k")];
    Reply::of(router.clone().oneshot(request(path, &headers, &())).await.expect("an answer")).await
}

async fn count(pool: &PgPool, what: &'static str) -> i64 {
    sqlx::query_scalar(what).fetch_one(pool).await.expect("a count")
}

const IN_PROGRESS: &str = "SELECT count(*) FROM idem.idempotency_keys WHERE status IS NULL AND failure IS NULL";
const COMPLETED: &str = "SELECT count(*) FROM idem.idempotency_keys WHERE status = 201";

/// Until nothing is left that the completer may take.
async fn complete(state: &AppState, router: &Router, pool: &PgPool) {
    let completer = state.idempotency.completer(router.clone());
    tokio::time::timeout(Duration::from_secs(20), async {
        while count(pool, IN_PROGRESS).await > 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await
    .expect("completed or failed");
    completer.stop().await;
}

#[tokio::test]
async fn a_recovered_request_says_exactly_whose_it_is_44() {
    let (_database, pool, state, router) = start(&[]).await;
    let odd = ["a", "(x", "((x", "(1:a", "(global)", "1:a", "a)b", "7"];
    let (mut expected, mut operations) = (Vec::new(), 0);
    for company in odd {
        state.node.failing.store(1, Ordering::SeqCst);
        assert_eq!(post_as(&router, "/one", company, "").await.status, 502, "{company}");
        expected.push(vec![company.to_owned()]);
        for name in ["b", "(y", "2:cd"] {
            state.node.failing.store(1, Ordering::SeqCst);
            assert_eq!(post_as(&router, "/two", company, name).await.status, 502, "{company} {name}");
            expected.push(vec![company.to_owned(), name.to_owned()]);
        }
        operations += 4;
    }
    complete(&state, &router, &pool).await;
    assert_eq!(count(&pool, COMPLETED).await, operations);
    assert_eq!(count(&pool, "SELECT count(*) FROM entries").await, operations, "each wrote once");
    let mut seen = state.node.seen.lock().unwrap().clone();
    assert!(seen.iter().all(|(scope, parts)| parts.len() == 2 || [scope.clone()] == parts[..]), "{seen:?}");
    let mut seen: Vec<_> = seen.drain(..).map(|(_, parts)| parts).collect();
    seen.sort();
    expected.sort();
    assert_eq!(seen, expected);
}

#[tokio::test]
async fn a_recovered_request_of_another_owner_runs_nothing_and_is_for_a_person_44() {
    for path in ["/one", "/two"] {
        let (_database, pool, state, router) = start(&[]).await;
        state.node.failing.store(1, Ordering::SeqCst);
        assert_eq!(post_as(&router, path, "a", "b").await.status, 502);
        *state.node.mistaken.lock().unwrap() = Some("somebody else".to_owned());
        complete(&state, &router, &pool).await;
        assert_eq!(state.node.runs.load(Ordering::SeqCst), 1, "{path}: nothing ran for somebody else");
        let failed = state.idempotency.failed_operations(10).await.expect("a list");
        assert_eq!(failed.len(), 1, "{path}: {failed:?}");
        assert!(failed[0].reason.contains("scope"), "{path}: {failed:?}");
        let keys = count(&pool, "SELECT count(*) FROM idem.idempotency_keys").await;
        assert_eq!((keys, count(&pool, COMPLETED).await), (1, 0), "{path}");
    }
}

#[tokio::test]
async fn an_operation_is_completed_where_the_default_is_read_only_59() {
    let (_database, pool, state, router) = start(&[("default_transaction_read_only", "on")]).await;
    for path in ["/one", "/two"] {
        state.node.failing.store(1, Ordering::SeqCst);
        assert_eq!(post_as(&router, path, "a", "b").await.status, 502);
    }
    complete(&state, &router, &pool).await;
    assert_eq!((count(&pool, COMPLETED).await, count(&pool, "SELECT count(*) FROM entries").await), (2, 2));
    // And what a person does.
    state.node.failing.store(1, Ordering::SeqCst);
    assert_eq!(post_as(&router, "/one", "c", "").await.status, 502);
    *state.node.mistaken.lock().unwrap() = Some("somebody else".to_owned());
    complete(&state, &router, &pool).await;
    let failed = state.idempotency.failed_operations(10).await.expect("a list").remove(0);
    assert!(state.idempotency.retry_failed(&failed).await.expect("a retry"));
    complete(&state, &router, &pool).await;
    assert!(state.idempotency.discard_failed(&failed).await.expect("discarded"));
    assert_eq!(state.idempotency.sweep().await.expect("a sweep"), 0);
}

#[tokio::test]
async fn what_an_operation_records_is_on_the_disk_whatever_the_default() {
    for (default, most) in [("off", "local"), ("local", "local"), ("on", "on")] {
        let (_database, pool, state, router) = start(&[("synchronous_commit", default)]).await;
        let watch = "CREATE TABLE commits (setting text); \
             CREATE FUNCTION watch() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
                 IF TG_OP = 'INSERT' OR NEW.recovery_points IS DISTINCT FROM OLD.recovery_points THEN \
                     INSERT INTO public.commits VALUES (current_setting('synchronous_commit')); END IF; RETURN NULL; END $$; \
             CREATE TRIGGER watch AFTER INSERT OR UPDATE ON idem.idempotency_keys FOR EACH ROW EXECUTE FUNCTION watch()";
        sqlx::raw_sql(watch).execute(&pool).await.expect("the trigger");
        state.node.failing.store(1, Ordering::SeqCst);
        assert_eq!(post_as(&router, "/one", "a", "").await.status, 502);
        assert_eq!(post_as(&router, "/one", "a", "").await.status, 201);
        let settings: Vec<String> =
            sqlx::query_scalar("SELECT setting FROM commits").fetch_all(&pool).await.expect("settings");
        assert!(settings.len() >= 3 && settings.iter().all(|setting| setting == most), "{default}: {settings:?}");
    }
}
