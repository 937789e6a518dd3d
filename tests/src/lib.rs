//! The application that the tests attack: small, and able to end in every way a handler can end.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRef, FromRequestParts, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Request, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use bytes::Bytes;
use http_body_util::BodyExt;
use idem_runtime::{Idempotency, Tx, idempotent};
use idem_testing::TestDatabase;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sqlx::PgPool;
use tokio::sync::Semaphore;
use tower::ServiceExt;

/// One server process: its own state, and a pool of its own over a database that others may share.
#[derive(Clone, Debug)]
pub struct App {
    /// The routes.
    pub router: Router,
    /// The pool that the runtime uses.
    pub pool: PgPool,
    /// The runtime's handle.
    pub idempotency: Idempotency,
    /// Where handlers wait.
    pub gate: Arc<Gate>,
}

/// Lets a test hold handlers in the middle: each says that it has arrived, and goes on when the test lets it.
#[derive(Debug)]
pub struct Gate {
    arrived: Semaphore,
    open: Semaphore,
}

impl Gate {
    /// Closed.
    #[must_use]
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        Self { arrived: Semaphore::new(0), open: Semaphore::new(0) }
    }

    /// Says that a handler has arrived, and waits until it may go on.
    pub async fn pass(&self) {
        self.arrived.add_permits(1);
        self.open.acquire().await.expect("never closed").forget();
    }

    /// Waits until a handler stands at the gate.
    pub async fn arrival(&self) {
        self.arrived.acquire().await.expect("never closed").forget();
    }

    /// Lets `handlers` of them through.
    pub fn open(&self, handlers: usize) {
        self.open.add_permits(handlers);
    }
}

#[derive(Clone, Debug)]
struct AppState {
    idempotency: Idempotency,
    gate: Arc<Gate>,
}

impl FromRef<AppState> for Idempotency {
    fn from_ref(state: &AppState) -> Self {
        state.idempotency.clone()
    }
}

impl FromRef<AppState> for Arc<Gate> {
    fn from_ref(state: &AppState) -> Self {
        Arc::clone(&state.gate)
    }
}

/// Who asks, by the header `tenant`.
#[derive(Debug)]
pub struct Tenant {
    /// The header's text.
    pub id: String,
}

impl<S: Send + Sync> FromRequestParts<S> for Tenant {
    type Rejection = StatusCode;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, StatusCode> {
        let id = parts.headers.get("tenant").and_then(|value| value.to_str().ok()).ok_or(StatusCode::UNAUTHORIZED)?;
        Ok(Self { id: id.to_owned() })
    }
}

/// What to do: write an entry, and end as `then` says.
#[derive(Debug, Serialize, Deserialize)]
pub struct Entry {
    /// The entry's text.
    pub text: String,
    /// How the handler ends.
    #[serde(default)]
    pub then: Then,
}

/// How a handler ends after its write.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Then {
    /// 201 with headers of its own.
    #[default]
    Created,
    /// Waits at the gate, then as `Created`.
    Wait,
    /// Sleeps that many milliseconds, then as `Created`.
    Sleep(u64),
    /// This status.
    Status(u16),
    /// Breaks a unique constraint, which aborts the transaction, and answers 409.
    Duplicate,
    /// Breaks a unique constraint inside a savepoint and goes on.
    Savepoint,
    /// Breaks a unique constraint and claims success.
    Swallow,
    /// Enters a savepoint that it never leaves.
    LeakSavepoint,
    /// Loses to a concurrent transaction, and then answers this status.
    Conflict(u16),
    /// Panics.
    Panic,
    /// Calls a helper that ends the transaction, and then answers this status.
    Escape(u16),
    /// Calls a helper that ends the transaction and begins another, and then answers this status.
    EscapeAndBegin(u16),
    /// Writes what a deferred constraint refuses at the commit.
    Deferred,
    /// A body of that many bytes.
    Large(usize),
    /// A body whose length nobody knows.
    Stream,
    /// The transaction's own backend is terminated, and the handler answers 201.
    Terminate,
    /// Says how often the entry stands in the table, which a repeatable snapshot may not see.
    Count,
}

async fn perform(tx: &mut Tx, gate: &Gate, entry: Entry) -> Result<Response, Response> {
    let internal = |error: sqlx::Error| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response();
    let id: i64 = sqlx::query_scalar("INSERT INTO entries (text) VALUES ($1) RETURNING id")
        .bind(&entry.text)
        // As every query behind a pooler in transaction mode must be.
        .persistent(false)
        .fetch_one(&mut *tx)
        .await
        .map_err(internal)?;
    let duplicate =
        || sqlx::query("INSERT INTO entries (id, text) VALUES ($1, 'duplicate')").bind(id).persistent(false);
    match entry.then {
        Then::Created => {}
        Then::Wait => gate.pass().await,
        Then::Sleep(milliseconds) => tokio::time::sleep(Duration::from_millis(milliseconds)).await,
        Then::Status(status) => {
            let status = StatusCode::from_u16(status).expect("a status");
            return Ok((status, Json(json!({ "refused": id }))).into_response());
        }
        Then::Duplicate => {
            duplicate().execute(&mut *tx).await.expect_err("a unique violation");
            return Err((StatusCode::CONFLICT, "taken").into_response());
        }
        Then::Savepoint => {
            let mut savepoint = sqlx::Connection::begin(&mut **tx).await.map_err(internal)?;
            duplicate().execute(&mut *savepoint).await.expect_err("a unique violation");
            savepoint.rollback().await.map_err(internal)?;
        }
        Then::Swallow => {
            duplicate().execute(&mut *tx).await.expect_err("a unique violation");
        }
        Then::LeakSavepoint => std::mem::forget(sqlx::Connection::begin(&mut **tx).await.map_err(internal)?),
        Then::Conflict(status) => {
            let conflict = "DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '40001'; END $$";
            sqlx::query(conflict).execute(&mut *tx).await.expect_err("a serialization failure");
            return Ok(StatusCode::from_u16(status).expect("a status").into_response());
        }
        Then::Panic => panic!("the handler panics, as the test asked"),
        Then::Escape(status) => {
            end_transaction(tx, "COMMIT").await;
            return Ok(StatusCode::from_u16(status).expect("a status").into_response());
        }
        Then::EscapeAndBegin(status) => {
            end_transaction(tx, "COMMIT; BEGIN").await;
            return Ok(StatusCode::from_u16(status).expect("a status").into_response());
        }
        Then::Deferred => {
            sqlx::query("INSERT INTO notes (entry) VALUES (-1)").execute(&mut *tx).await.map_err(internal)?;
        }
        Then::Large(length) => return Ok((StatusCode::CREATED, vec![b'x'; length]).into_response()),
        Then::Stream => {
            let parts = tokio_stream_of(["a", "b"]);
            return Ok((StatusCode::CREATED, Body::new(parts)).into_response());
        }
        Then::Terminate => {
            let ended = sqlx::query("SELECT pg_terminate_backend(pg_backend_pid())").execute(&mut *tx).await;
            ended.expect_err("a terminated backend");
        }
        Then::Count => {}
    }
    let count: i64 = sqlx::query_scalar("SELECT count(*) FROM entries WHERE text = $1")
        .bind(&entry.text)
        // As every query behind a pooler in transaction mode must be.
        .persistent(false)
        .fetch_one(&mut *tx)
        .await
        .unwrap_or(-1);
    let headers = [
        ("location", format!("/entries/{id}")),
        ("etag", format!("\"{id}\"")),
        ("set-cookie", "session=secret".to_owned()),
    ];
    Ok((StatusCode::CREATED, headers, Json(json!({ "id": id, "count": count }))).into_response())
}

/// What a macro cannot see: a helper that ends the transaction.
async fn end_transaction(tx: &mut Tx, sql: &'static str) {
    sqlx::raw_sql(sql).execute(&mut **tx).await.expect("the command");
}

fn tokio_stream_of(
    parts: [&'static str; 2],
) -> impl axum::body::HttpBody<Data = Bytes, Error = std::io::Error> + Send + 'static {
    use http_body_util::StreamBody;
    let frames = parts.map(|part| Ok(http_body::Frame::data(Bytes::from_static(part.as_bytes()))));
    StreamBody::new(futures_util::stream::iter(frames))
}

#[idempotent(scope = tenant.id, ttl = "24h")]
async fn create(
    tenant: Tenant,
    State(gate): State<Arc<Gate>>,
    tx: &mut Tx,
    Json(entry): Json<Entry>,
) -> Result<Response, Response> {
    perform(tx, &gate, entry).await
}

#[idempotent(scope = tenant.id, ttl = "24h", in_flight = "wait 10s")]
async fn patient(
    tenant: Tenant,
    State(gate): State<Arc<Gate>>,
    tx: &mut Tx,
    Json(entry): Json<Entry>,
) -> Result<Response, Response> {
    perform(tx, &gate, entry).await
}

#[idempotent(scope = tenant.id, ttl = "24h", in_flight = "wait 200ms")]
async fn impatient(
    tenant: Tenant,
    State(gate): State<Arc<Gate>>,
    tx: &mut Tx,
    Json(entry): Json<Entry>,
) -> Result<Response, Response> {
    perform(tx, &gate, entry).await
}

#[idempotent(scope = tenant.id, ttl = "1s")]
async fn forgetful(
    tenant: Tenant,
    State(gate): State<Arc<Gate>>,
    tx: &mut Tx,
    Json(entry): Json<Entry>,
) -> Result<Response, Response> {
    perform(tx, &gate, entry).await
}

#[idempotent(scope = tenant.id, ttl = "24h", key = optional)]
async fn optional(
    tenant: Tenant,
    State(gate): State<Arc<Gate>>,
    tx: &mut Tx,
    Json(entry): Json<Entry>,
) -> Result<Response, Response> {
    perform(tx, &gate, entry).await
}

#[idempotent(scope = global, ttl = "24h", key = entry.text)]
async fn event(State(gate): State<Arc<Gate>>, tx: &mut Tx, Json(entry): Json<Entry>) -> Result<Response, Response> {
    perform(tx, &gate, entry).await
}

#[idempotent(scope = tenant.id, ttl = "24h", failures = "replay")]
async fn stubborn(
    tenant: Tenant,
    State(gate): State<Arc<Gate>>,
    tx: &mut Tx,
    Json(entry): Json<Entry>,
) -> Result<Response, Response> {
    perform(tx, &gate, entry).await
}

#[idempotent(scope = tenant.id, ttl = "24h", lease = "1s")]
async fn hasty(
    tenant: Tenant,
    State(gate): State<Arc<Gate>>,
    tx: &mut Tx,
    Json(entry): Json<Entry>,
) -> Result<Response, Response> {
    perform(tx, &gate, entry).await
}

#[idempotent(scope = tenant.id, ttl = "24h", isolation = "repeatable read")]
async fn repeatable(
    tenant: Tenant,
    State(gate): State<Arc<Gate>>,
    tx: &mut Tx,
    Json(entry): Json<Entry>,
) -> Result<Response, Response> {
    perform(tx, &gate, entry).await
}

#[idempotent(scope = tenant.id, ttl = "24h", isolation = "serializable")]
async fn serializable(
    tenant: Tenant,
    State(gate): State<Arc<Gate>>,
    tx: &mut Tx,
    Json(entry): Json<Entry>,
) -> Result<Response, Response> {
    perform(tx, &gate, entry).await
}

#[idempotent(scope = tenant.id, ttl = "24h", fingerprint = entry.text)]
async fn lenient(
    tenant: Tenant,
    State(gate): State<Arc<Gate>>,
    tx: &mut Tx,
    Json(entry): Json<Entry>,
) -> Result<Response, Response> {
    perform(tx, &gate, entry).await
}

#[idempotent(scope = (tenant.id, "bytes"), ttl = "24h")]
async fn bytes(tenant: Tenant, tx: &mut Tx, body: Bytes) -> Result<Bytes, StatusCode> {
    let written =
        sqlx::query("INSERT INTO entries (text) VALUES ($1)").bind(body.len().to_string()).execute(&mut *tx).await;
    written.map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
    Ok(body)
}

#[idempotent(scope = tenant.id, ttl = "24h")]
async fn bodiless(tenant: Tenant, tx: &mut Tx) -> StatusCode {
    let written = sqlx::query("INSERT INTO entries (text) VALUES ('bodiless')").execute(&mut *tx).await;
    if written.is_ok() { StatusCode::NO_CONTENT } else { StatusCode::INTERNAL_SERVER_ERROR }
}

/// Creates the application's own tables.
pub async fn create_tables(pool: &PgPool) {
    let tables = "CREATE TABLE entries (id bigserial PRIMARY KEY, text text NOT NULL); \
                  CREATE TABLE notes (entry bigint NOT NULL REFERENCES entries DEFERRABLE INITIALLY DEFERRED)";
    sqlx::raw_sql(tables).execute(pool).await.expect("the application's tables");
}

impl App {
    /// The application over a database that has its tables already.
    #[must_use]
    pub fn over(pool: PgPool, idempotency: Idempotency) -> Self {
        // A failing test shows what the runtime logged.
        let _ = tracing_subscriber::fmt().with_max_level(tracing::Level::WARN).with_test_writer().try_init();
        let gate = Arc::new(Gate::new());
        let state = AppState { idempotency: idempotency.clone(), gate: Arc::clone(&gate) };
        let routes = Router::new()
            .route("/entries", post(create))
            .route("/entries/{id}/refund", post(create))
            .route("/patient", post(patient))
            .route("/impatient", post(impatient))
            .route("/forgetful", post(forgetful))
            .route("/optional", post(optional))
            .route("/event", post(event))
            .route("/stubborn", post(stubborn))
            .route("/hasty", post(hasty))
            .route("/repeatable", post(repeatable))
            .route("/serializable", post(serializable))
            .route("/lenient", post(lenient))
            .route("/bytes", post(bytes))
            .route("/bodiless", post(bodiless));
        let router = routes.clone().nest("/nested", routes).with_state(state);
        Self { router, pool, idempotency, gate }
    }

    /// The application with default settings over a new database.
    pub async fn start() -> (TestDatabase, Self) {
        let database = TestDatabase::create().await.expect("a database");
        let app = Self::first(&database).await;
        (database, app)
    }

    /// The first process over a database: it creates all tables.
    pub async fn first(database: &TestDatabase) -> Self {
        let app = Self::another(database);
        create_tables(&app.pool).await;
        app.idempotency.migrate().await.expect("the migrations");
        app
    }

    /// Another process over the same database: nothing in memory is shared.
    #[must_use]
    pub fn another(database: &TestDatabase) -> Self {
        let pool = database.pool();
        Self::over(pool.clone(), Idempotency::new(pool))
    }

    /// Sends a request through the router.
    pub async fn send(&self, request: Request<Body>) -> Reply {
        let response = self.router.clone().oneshot(request).await.unwrap_or_else(|error| match error {});
        Reply::of(response).await
    }

    /// Posts an entry as the tenant `a`.
    pub async fn post(&self, path: &str, key: &str, entry: &Entry) -> Reply {
        self.send(request(path, &[("tenant", "a"), ("idempotency-key", key)], entry)).await
    }

    /// How many entries there are.
    pub async fn entries(&self) -> i64 {
        sqlx::query_scalar("SELECT count(*) FROM entries").fetch_one(&self.pool).await.expect("a count")
    }

    /// How many outcomes are stored.
    pub async fn stored(&self) -> i64 {
        sqlx::query_scalar("SELECT count(*) FROM idem.idempotency_keys").fetch_one(&self.pool).await.expect("a count")
    }
}

/// An entry with an ending.
#[must_use]
pub fn entry(text: &str, then: Then) -> Entry {
    Entry { text: text.to_owned(), then }
}

/// A JSON request.
#[must_use]
pub fn request(path: &str, headers: &[(&str, &str)], body: &impl Serialize) -> Request<Body> {
    let mut request = Request::post(path).header("content-type", "application/json");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(Body::from(serde_json::to_vec(body).expect("JSON"))).expect("a request")
}

/// A response, read whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// Its status.
    pub status: u16,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Bytes,
}

impl Reply {
    /// Reads a response.
    pub async fn of(response: Response) -> Self {
        let (parts, body) = response.into_parts();
        let body = body.collect().await.expect("a body").to_bytes();
        Self { status: parts.status.as_u16(), headers: parts.headers, body }
    }

    /// Whether it is marked as a replay.
    #[must_use]
    pub fn replayed(&self) -> bool {
        self.headers.get("idempotency-replayed").is_some_and(|value| value == "true")
    }

    /// A header as text; empty if there is none.
    #[must_use]
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// The body as JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("a JSON body")
    }

    /// The end of the problem's type.
    #[must_use]
    pub fn problem(&self) -> String {
        assert_eq!(self.header("content-type"), "application/problem+json", "{self:?}");
        let problem = self.json();
        assert_eq!(problem["status"], self.status, "{problem}");
        problem["type"].as_str().and_then(|url| url.split('#').next_back()).unwrap_or_default().to_owned()
    }

    /// Whether this is the contract's problem of that name.
    #[must_use]
    pub fn problem_is(&self, name: &str) -> bool {
        self.header("content-type") == "application/problem+json" && self.problem() == name
    }

    /// Asserts that this answers like `first`, apart from what belongs to one client or says that it is a replay.
    pub fn assert_replays(&self, first: &Self) {
        assert!(self.replayed(), "{self:?}");
        let mut expected = first.headers.clone();
        for name in ["set-cookie", "content-length", "date"] {
            expected.remove(name);
        }
        expected.insert("idempotency-replayed", "true".parse().expect("a value"));
        let mut headers = self.headers.clone();
        headers.remove("content-length");
        headers.remove("date");
        assert_eq!((self.status, &headers, &self.body), (first.status, &expected, &first.body));
    }
}
