//! A server process: an ordinary application, which fails now and then on its own too.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::extract::{FromRef, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use idem_runtime::{Error, Idempotency, IdempotencyKey, Operation, Tx, idempotent};
use serde::{Deserialize, Serialize};
use serde_json::json;
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tokio::net::UnixListener;
use tokio::time::sleep;

use crate::http;
use crate::messages::{ATTEMPTS, Message, group};
use crate::provider::{Charge, ChargeRequest};
use crate::{Failure, ledger};

/// Short, so that it runs out often.
pub(crate) const LEASE: Duration = Duration::from_secs(2);

pub(crate) const DATABASE: &str = "SOAK_DATABASE_URL";
pub(crate) const SOCKET: &str = "SOAK_SOCKET";
pub(crate) const PROVIDER: &str = "SOAK_PROVIDER";

/// What a client asks for.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Order {
    /// By which effects are counted, whatever the keys.
    pub(crate) operation: u64,
    pub(crate) tenant: u64,
    pub(crate) ending: ledger::Ending,
}

#[derive(Debug, Clone)]
struct AppState {
    idempotency: Idempotency,
    provider: PathBuf,
}

impl FromRef<AppState> for Idempotency {
    fn from_ref(state: &AppState) -> Self {
        state.idempotency.clone()
    }
}

enum ApiError {
    Chance,
    Provider(io::Error),
    Database(sqlx::Error),
    Idempotency(Error),
}

impl From<sqlx::Error> for ApiError {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error)
    }
}

impl From<Error> for ApiError {
    fn from(error: Error) -> Self {
        Self::Idempotency(error)
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let internal = StatusCode::INTERNAL_SERVER_ERROR;
        match self {
            Self::Chance => (internal, "bad luck").into_response(),
            Self::Provider(error) => (internal, format!("provider: {error}")).into_response(),
            Self::Database(error) => (internal, format!("database: {error}")).into_response(),
            Self::Idempotency(error) => error.into_response(),
        }
    }
}

/// Work takes time, and goes wrong by itself.
async fn work() -> Result<(), ApiError> {
    if fastrand::u8(..4) == 0 {
        sleep(Duration::from_millis(fastrand::u64(..20))).await;
    }
    match fastrand::u16(..1_000) {
        0..10 => Err(ApiError::Chance),
        10..13 => panic!("bad luck"),
        _ => Ok(()),
    }
}

async fn insert(tx: &mut Tx, sql: &'static str, order: Order) -> Result<i64, ApiError> {
    Ok(sqlx::query_scalar(sql).bind(order.operation.cast_signed()).fetch_one(tx).await?)
}

async fn place_order(tx: &mut Tx, order: Order) -> Result<Response, ApiError> {
    work().await?;
    let id = insert(tx, "INSERT INTO orders (operation) VALUES ($1) RETURNING id", order).await?;
    // Late, since the writers of a group take turns.
    work().await?;
    let (message, group) = (Message::about(order), group(order));
    let outbox = tx.outbox();
    let outbox = if let Some(group) = &group { outbox.group(group) } else { outbox };
    outbox.send(message.topic(), &order.operation.to_string(), &message).await?;
    if fastrand::u8(..10) == 0 {
        sleep(Duration::from_millis(fastrand::u64(..5))).await;
    }
    Ok(answer(order.ending == ledger::Ending::Refusal, id))
}

/// No two executions answer alike.
fn answer(refused: bool, id: i64) -> Response {
    let status = if refused { StatusCode::PAYMENT_REQUIRED } else { StatusCode::CREATED };
    let body = json!({ "id": id, "execution": uuid::Uuid::new_v4().to_string() });
    (status, [("location", format!("/orders/{id}"))], Json(body)).into_response()
}

#[idempotent(scope = order.tenant, ttl = "7d")]
async fn orders(tx: &mut Tx, Json(order): Json<Order>) -> Result<Response, ApiError> {
    place_order(tx, order).await
}

#[idempotent(scope = order.tenant, ttl = "7d", in_flight = "wait 1s")]
async fn patient(tx: &mut Tx, Json(order): Json<Order>) -> Result<Response, ApiError> {
    place_order(tx, order).await
}

#[idempotent(scope = order.tenant, ttl = "7d", isolation = "repeatable read")]
async fn repeatable(tx: &mut Tx, Json(order): Json<Order>) -> Result<Response, ApiError> {
    place_order(tx, order).await
}

#[idempotent(scope = order.tenant, ttl = "7d")]
async fn checkouts(
    State(state): State<AppState>,
    op: &mut Operation,
    Json(order): Json<Order>,
) -> Result<Response, ApiError> {
    let reservation = op
        .transaction("reserve", async |tx| {
            work().await?;
            insert(tx, "INSERT INTO reservations (operation) VALUES ($1) RETURNING id", order).await
        })
        .await?;
    work().await?;
    let charge: Charge = op.step("charge", async |key: IdempotencyKey| state.charge(&key, order).await).await?;
    work().await?;
    if !charge.declined {
        op.transaction("confirm", async |tx| {
            insert(tx, "INSERT INTO confirmations (operation) VALUES ($1) RETURNING id", order).await?;
            work().await
        })
        .await?;
    }
    Ok(answer(charge.declined, reservation))
}

impl AppState {
    async fn charge(&self, key: &IdempotencyKey, order: Order) -> Result<Charge, ApiError> {
        let request = ChargeRequest { operation: order.operation, decline: order.ending == ledger::Ending::Refusal };
        let body = serde_json::to_vec(&request).expect("JSON");
        let headers = [("idempotency-key", key.as_str())];
        let sent = http::post(&self.provider, "/charges", &headers, body);
        let limited = tokio::time::timeout(Duration::from_secs(5), sent).await;
        let answer = limited.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())).map_err(ApiError::Provider)?;
        match answer.status {
            200 => serde_json::from_slice(&answer.body).map_err(|error| ApiError::Provider(error.into())),
            status => Err(ApiError::Provider(io::Error::other(format!("status {status}")))),
        }
    }
}

/// What the relay does: another system is told, and may not answer.
async fn deliver(provider: PathBuf, message: idem_runtime::Message) -> Result<(), Failure> {
    let told: Message = message.payload()?;
    let path = format!("/messages/{}/{}", told.operation, message.topic());
    let key = message.key();
    let headers = [("idempotency-key", key.as_str()), ("group", message.group().unwrap_or_default())];
    let answer = http::post(&provider, &path, &headers, b"{}".to_vec()).await?;
    if told.poison {
        std::process::abort();
    }
    if answer.status == 200 { Ok(()) } else { Err(format!("status {}", answer.status).into()) }
}

fn router(state: AppState) -> Router {
    Router::new()
        .route("/orders", post(orders))
        .route("/patient", post(patient))
        .route("/repeatable", post(repeatable))
        .route("/checkouts", post(checkouts))
        .with_state(state)
}

/// The process's main function. It says its clock when it is ready, and ends with the process that started it.
pub(crate) async fn serve() -> Result<(), Failure> {
    std::thread::spawn(|| {
        let _ = io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    tracing_subscriber::fmt().with_max_level(tracing::Level::WARN).with_writer(io::stderr).init();
    let options = PgPoolOptions::new().max_connections(10).acquire_timeout(Duration::from_secs(3));
    let pool = options.connect_lazy(&std::env::var(DATABASE)?)?;
    let builder = Idempotency::builder(pool).lease(LEASE).relay_lease(LEASE);
    let idempotency = builder.delivery_attempts(ATTEMPTS).delivery_timeout(Duration::from_secs(3)).build()?;
    let state = AppState { idempotency: idempotency.clone(), provider: std::env::var(PROVIDER)?.into() };
    let router = router(state);
    let _completer = idempotency.completer(router.clone());
    let _sweeper = idempotency.sweeper();
    let receiver = PathBuf::from(std::env::var(PROVIDER)?);
    let _relay =
        idempotency.relay().on_each(["quick", "slow"], move |message| deliver(receiver.clone(), message)).start()?;
    let listener = UnixListener::bind(std::env::var(SOCKET)?)?;
    println!("{}", SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs());
    axum::serve(listener, router).await?;
    Ok(())
}

pub(crate) async fn create_tables(pool: &PgPool) -> Result<(), Failure> {
    let tables = "CREATE TABLE orders (id bigserial PRIMARY KEY, operation bigint NOT NULL); \
                  CREATE TABLE reservations (id bigserial PRIMARY KEY, operation bigint NOT NULL); \
                  CREATE TABLE confirmations (id bigserial PRIMARY KEY, operation bigint NOT NULL)";
    sqlx::raw_sql(tables).execute(pool).await?;
    Idempotency::new(pool.clone()).migrate().await?;
    Ok(())
}

/// Where sockets and logs are, with a path short enough for a socket.
pub(crate) struct Directory {
    path: PathBuf,
    kept: bool,
}

impl Directory {
    pub(crate) fn create() -> io::Result<Self> {
        let path = std::env::temp_dir().join(format!("idem-soak-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path)?;
        Ok(Self { path, kept: false })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn keep(mut self) -> PathBuf {
        self.kept = true;
        self.path.clone()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if !self.kept {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}
