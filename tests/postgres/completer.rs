//! Nobody comes back: the completer finishes what was begun, and what it cannot finish waits for a person.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::extract::{FromRef, FromRequestParts, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::routing::post;
use axum::{Json, Router};
use idem_runtime::{Builder, Error, Idempotency, Operation, Recovered, Status, Tx, idempotent};
use idem_testing::TestDatabase;
use idem_tests::{App, Reply, request};
use serde_json::{Value, json};
use sqlx::PgPool;
use tokio::sync::Notify;
use tower::ServiceExt;

/// Who asks: by a token, or recovered.
struct User {
    id: i64,
}

impl<S: Sync> FromRequestParts<S> for User {
    type Rejection = StatusCode;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, StatusCode> {
        let id = match parts.extensions.get::<Recovered>() {
            Some(recovered) => recovered.scope().parse().ok(),
            None => parts
                .headers
                .get("authorization")
                .and_then(|token| token.to_str().ok()?.strip_prefix("Bearer ")?.parse().ok()),
        };
        id.map(|id| Self { id }).ok_or(StatusCode::UNAUTHORIZED)
    }
}

#[derive(Clone)]
struct Node {
    idempotency: Idempotency,
    /// How many attempts still fail.
    failing: Arc<AtomicU32>,
    attempts: Arc<AtomicU32>,
    /// Tells when a handler is stuck.
    stuck: Arc<Notify>,
}

impl FromRef<Node> for Idempotency {
    fn from_ref(node: &Node) -> Self {
        node.idempotency.clone()
    }
}

async fn insert(tx: &mut Tx, text: &str) -> Result<i64, StatusCode> {
    let insert = sqlx::query_scalar("INSERT INTO entries (text) VALUES ($1) RETURNING id").bind(text);
    insert.fetch_one(tx).await.map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)
}

struct Failed(StatusCode);

impl From<StatusCode> for Failed {
    fn from(status: StatusCode) -> Self {
        Self(status)
    }
}

impl From<Error> for Failed {
    fn from(_: Error) -> Self {
        Self(StatusCode::SERVICE_UNAVAILABLE)
    }
}

impl axum::response::IntoResponse for Failed {
    fn into_response(self) -> axum::response::Response {
        self.0.into_response()
    }
}

#[idempotent(scope = user.id, ttl = "24h", lease = "1s")]
async fn order(
    user: User,
    State(node): State<Node>,
    op: &mut Operation,
    Json(cart): Json<Value>,
) -> Result<Json<Value>, Failed> {
    node.attempts.fetch_add(1, Ordering::SeqCst);
    let id: i64 = op.transaction("create order", async |tx| Ok::<_, Failed>(insert(tx, "order").await?)).await?;
    if node.failing.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok() {
        return Err(Failed(StatusCode::BAD_GATEWAY));
    }
    op.transaction("ship", async |tx| Ok::<_, Failed>(insert(tx, "ship").await?)).await?;
    Ok(Json(json!({ "order": id, "user": user.id, "cart": cart })))
}

/// Fails as long as it is told to, and then never ends.
#[idempotent(scope = user.id, ttl = "24h", lease = "1s")]
async fn stuck(
    user: User,
    State(node): State<Node>,
    op: &mut Operation,
    Json(cart): Json<Value>,
) -> Result<Json<Value>, Failed> {
    op.transaction("begin", async |tx| Ok::<_, Failed>(insert(tx, "stuck").await?)).await?;
    if node.failing.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok() {
        return Err(Failed(StatusCode::BAD_GATEWAY));
    }
    node.stuck.notify_one();
    std::future::pending::<()>().await;
    Ok(Json(cart))
}

struct Process {
    node: Node,
    router: Router,
    pool: PgPool,
}

impl Process {
    fn over(database: &TestDatabase, settings: impl Fn(Builder) -> Builder) -> Self {
        let pool = database.pool();
        let builder = Idempotency::builder(pool.clone()).recovery_interval(Duration::from_millis(20));
        let idempotency = settings(builder).build().expect("settings");
        let node = Node { idempotency, failing: Arc::default(), attempts: Arc::default(), stuck: Arc::default() };
        let router = Router::new().route("/orders", post(order)).route("/stuck", post(stuck)).with_state(node.clone());
        Self { node, router, pool }
    }

    async fn post(&self, key: &str) -> Reply {
        self.post_to("/orders?express=1", key).await
    }

    async fn post_to(&self, path: &str, key: &str) -> Reply {
        let headers = [("authorization", "Bearer 7"), ("idempotency-key", key)];
        let request = request(path, &headers, &json!({ "items": ["é", 1.0] }));
        Reply::of(self.router.clone().oneshot(request).await.unwrap_or_else(|error| match error {})).await
    }

    async fn count(&self, text: &str) -> i64 {
        sqlx::query_scalar("SELECT count(*) FROM entries WHERE text = $1")
            .bind(text)
            .fetch_one(&self.pool)
            .await
            .expect("a count")
    }

    async fn status(&self, key: &str) -> Status {
        self.node.idempotency.status(&7_i64, key).await.expect("a status")
    }

    async fn until(&self, key: &str, reached: impl Fn(&Status) -> bool) -> Status {
        for _ in 0..1_500 {
            let status = self.status(key).await;
            if reached(&status) {
                return status;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("`{key}` is {:?}", self.status(key).await);
    }
}

#[tokio::test]
async fn an_abandoned_operation_is_completed_without_its_client() {
    let (database, _) = App::start().await;
    let process = Process::over(&database, |builder| builder);
    process.node.failing.store(2, Ordering::SeqCst);
    for key in ["k", "\"quoted\\\""] {
        process.node.failing.store(2, Ordering::SeqCst);
        // The client's own key is sent in quotes where it has to be.
        let header =
            if key == "k" { key.to_owned() } else { format!("\"{}\"", key.replace('\\', "\\\\").replace('"', "\\\"")) };
        assert_eq!(process.post(&header).await.status, 502);
        let status = process.status(key).await;
        assert!(
            matches!(&status, Status::InFlight { since: Some(_), step: Some(step) } if step == "create order"),
            "{status:?}"
        );
    }
    let nodes = [
        process.node.idempotency.completer(process.router.clone()),
        Process::over(&database, |builder| builder).completer(),
    ];
    for key in ["k", "\"quoted\\\""] {
        assert_eq!(
            process.until(key, |status| matches!(status, Status::Completed { .. })).await,
            Status::Completed { status: 200 }
        );
    }
    for node in nodes {
        node.stop().await;
    }
    assert_eq!((process.count("order").await, process.count("ship").await), (2, 2));
    let replay = process.post("k").await;
    assert!(replay.replayed(), "{replay:?}");
    assert_eq!((replay.json()["user"].clone(), replay.json()["cart"]["items"][0].clone()), (json!(7), json!("é")));
}

impl Process {
    fn completer(&self) -> idem_runtime::Completer {
        self.node.idempotency.completer(self.router.clone())
    }
}

#[tokio::test]
async fn what_cannot_be_completed_waits_for_a_person() {
    let (database, _) = App::start().await;
    let process = Process::over(&database, |builder| builder.recovery_attempts(1));
    process.node.failing.store(100, Ordering::SeqCst);
    for key in ["a", "b", "c"] {
        assert_eq!(process.post(key).await.status, 502);
    }
    let completer = process.completer();
    for key in ["a", "b", "c"] {
        let failed = process.until(key, |status| matches!(status, Status::Failed { .. })).await;
        let expected = Status::Failed {
            reason: "the last answer was 502 Bad Gateway".to_owned(),
            step: Some("create order".to_owned()),
        };
        assert_eq!(failed, expected);
    }
    let idempotency = &process.node.idempotency;
    let failed = idempotency.failed_operations(10).await.expect("a list");
    assert_eq!(failed.iter().map(|operation| operation.key.as_str()).collect::<Vec<_>>(), ["a", "b", "c"]);
    assert_eq!((failed[0].scope.as_str(), failed[0].attempts), ("7", 2));
    // A person discards one, has one tried again, and the third one's client comes back after all.
    assert!(idempotency.discard_failed(&failed[0]).await.expect("discarded"));
    assert!(!idempotency.discard_failed(&failed[0]).await.expect("nothing to discard"));
    assert_eq!(process.status("a").await, Status::Unknown);
    process.node.failing.store(0, Ordering::SeqCst);
    assert!(idempotency.retry_failed(&failed[1]).await.expect("retried"));
    process.until("b", |status| matches!(status, Status::Completed { .. })).await;
    assert_eq!(process.post("c").await.status, 200);
    completer.stop().await;
    assert_eq!(idempotency.failed_operations(10).await.expect("a list"), []);
    assert_eq!((process.count("order").await, process.count("ship").await), (3, 2));
}

/// One handler that never ends must not keep all other operations from being completed.
#[tokio::test]
async fn a_stuck_handler_does_not_stop_the_completer() {
    let (database, _) = App::start().await;
    let process = Process::over(&database, |builder| builder.lease(Duration::from_secs(1)));
    process.node.failing.store(1, Ordering::SeqCst);
    assert_eq!(process.post_to("/stuck", "s").await.status, 502);
    let completer = process.completer();
    process.node.stuck.notified().await;
    process.node.failing.store(1, Ordering::SeqCst);
    assert_eq!(process.post("k").await.status, 502);
    process.until("k", |status| matches!(status, Status::Completed { .. })).await;
    assert!(matches!(process.status("s").await, Status::InFlight { .. }), "it still runs, and holds its lease");
    tokio::time::timeout(Duration::from_secs(5), completer.stop()).await.expect("the batch at hand ends");
}

#[tokio::test]
async fn credentials_are_not_stored() {
    let (database, _) = App::start().await;
    let process = Process::over(&database, |builder| builder);
    process.node.failing.store(1, Ordering::SeqCst);
    assert_eq!(process.post("k").await.status, 502);
    let stored: Vec<u8> = sqlx::query_scalar("SELECT request FROM idem.idempotency_keys")
        .fetch_one(&process.pool)
        .await
        .expect("a request");
    let stored = String::from_utf8_lossy(&stored);
    assert!(stored.contains("/orders?express=1") && stored.contains("application/json"), "{stored}");
    assert!(!stored.contains("Bearer"), "{stored}");
}

#[tokio::test]
async fn a_completer_goes_on_after_the_database_was_away_37() {
    let (database, _) = App::start().await;
    let process = Process::over(&database, |builder| builder);
    process.node.failing.store(1, Ordering::SeqCst);
    assert_eq!(process.post("k").await.status, 502);
    let completer = process.completer();
    // All its connections break, again and again, in the middle of its rounds.
    let killer = database.pool();
    for _ in 0..20 {
        let kill = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
                    WHERE datname = current_database() AND pid <> pg_backend_pid()";
        let _: Result<i64, _> = sqlx::query_scalar(kill).fetch_one(&killer).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    process.until("k", |status| matches!(status, Status::Completed { .. })).await;
    completer.stop().await;
    assert_eq!((process.count("order").await, process.count("ship").await), (1, 1));
}

#[tokio::test]
async fn a_status_says_what_happened_to_a_key() {
    let (_database, app) = App::start().await;
    let status = |key: &'static str| {
        let idempotency = app.idempotency.clone();
        async move { idempotency.status("a", key).await.expect("a status") }
    };
    assert_eq!(status("k").await, Status::Unknown);
    let held = tokio::spawn({
        let app = app.clone();
        async move { app.post("/entries", "k", &idem_tests::entry("held", idem_tests::Then::Wait)).await }
    });
    app.gate.arrival().await;
    let in_flight = status("k").await;
    assert!(matches!(in_flight, Status::InFlight { since: Some(_), step: None }), "{in_flight:?}");
    assert_eq!(app.idempotency.status("b", "k").await.expect("a status"), Status::Unknown, "another scope");
    app.gate.open(1);
    held.await.expect("no panic");
    assert_eq!(status("k").await, Status::Completed { status: 201 });
    assert_eq!(serde_json::to_value(status("k").await).expect("JSON"), json!({ "state": "completed", "status": 201 }));
    sqlx::query("UPDATE idem.idempotency_keys SET expires_at = clock_timestamp()")
        .execute(&app.pool)
        .await
        .expect("an update");
    assert_eq!(status("k").await, Status::Unknown, "expired means absent");
}

#[tokio::test]
async fn a_status_can_be_asked_for_in_the_global_scope_and_with_whatever_a_client_sends() {
    let (_database, app) = App::start().await;
    let created = idem_tests::entry("e1", idem_tests::Then::Created);
    assert_eq!(app.send(request("/event", &[], &created)).await.status, 201);
    let global = app.idempotency.status(&idem_runtime::GlobalScope, "e1").await.expect("a status");
    assert_eq!(global, Status::Completed { status: 201 });
    for key in ["", "a\0b", "two words"] {
        let refused = app.idempotency.status("a", key).await.expect_err(key);
        assert!(matches!(refused, Error::InvalidKey(_)), "{refused:?}");
    }
}
