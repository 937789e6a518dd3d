//! The shop: one idempotent handler that writes an order, has it paid at the provider, and marks it paid.

use std::io;
use std::net::SocketAddr;

use axum::extract::{FromRef, FromRequestParts, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use idem_client::{Client, Key};
use idem_examples::Error;
use idem_runtime::{Idempotency, IdempotencyKey, Operation, idempotent};
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use tokio::net::TcpListener;

#[derive(Clone, FromRef)]
struct AppState {
    idempotency: Idempotency,
    payments: Payments,
}

struct Customer {
    id: i64,
}

#[derive(Deserialize)]
struct NewOrder {
    reference: String,
    cents: i64,
}

#[derive(Serialize)]
struct Order {
    id: i64,
    charge: String,
}

#[idempotent(scope = customer.id, ttl = "24h")]
async fn place_order(
    customer: Customer,
    op: &mut Operation,
    State(payments): State<Payments>,
    Json(new): Json<NewOrder>,
) -> Result<(StatusCode, Json<Order>), ApiError> {
    let id: i64 = op
        .transaction("create order", async |tx| {
            let insert = "INSERT INTO orders (customer, reference, cents) VALUES ($1, $2, $3) RETURNING id";
            let insert = sqlx::query_scalar(insert).bind(customer.id).bind(&new.reference).bind(new.cents);
            Ok::<_, ApiError>(insert.fetch_one(tx).await?)
        })
        .await?;
    let charge: String = op.step("charge", async |key| payments.charge(&key, new.cents).await).await?;
    op.transaction("mark paid", async |tx| {
        sqlx::query("UPDATE orders SET charge = $1 WHERE id = $2").bind(&charge).bind(id).execute(tx).await?;
        Ok::<_, ApiError>(())
    })
    .await?;
    Ok((StatusCode::CREATED, Json(Order { id, charge })))
}

/// The shop is a client, too: of the provider.
#[derive(Clone)]
struct Payments {
    client: Client,
    url: String,
}

impl Payments {
    async fn charge(&self, key: &IdempotencyKey, cents: i64) -> Result<String, ApiError> {
        let key = Key::new(key.as_str()).map_err(|_| ApiError::NotCharged)?;
        let request = self.client.post(&self.url).key(key).operation("charge").json(&cents);
        let answer = request.send().await.map_err(|_| ApiError::NotCharged)?;
        let charged = answer.error_for_status().map_err(|_| ApiError::NotCharged)?;
        charged.text().await.map_err(|_| ApiError::NotCharged)
    }
}

impl<S: Sync> FromRequestParts<S> for Customer {
    type Rejection = StatusCode;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, StatusCode> {
        let id = parts.headers.get("customer").and_then(|id| id.to_str().ok()?.parse().ok());
        id.map(|id| Self { id }).ok_or(StatusCode::UNAUTHORIZED)
    }
}

pub(crate) struct Shop {
    address: SocketAddr,
    idempotency: Idempotency,
    serving: tokio::task::JoinHandle<io::Result<()>>,
}

impl Shop {
    pub(crate) async fn start(pool: PgPool, provider: SocketAddr) -> Result<Self, Error> {
        sqlx::raw_sql(
            "CREATE TABLE orders (
                id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
                customer bigint NOT NULL,
                reference text NOT NULL,
                cents bigint NOT NULL CHECK (cents > 0),
                charge text
            )",
        )
        .execute(&pool)
        .await?;
        let idempotency = Idempotency::new(pool);
        idempotency.migrate().await?;
        let payments = Payments { client: Client::builder().build()?, url: format!("http://{provider}/charges") };
        let state = AppState { idempotency: idempotency.clone(), payments };
        let app = Router::new().route("/orders", post(place_order)).with_state(state);
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        Ok(Self { address, idempotency, serving: tokio::spawn(async move { axum::serve(listener, app).await }) })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits for the operations whose clients have left.
    pub(crate) async fn stop(self) {
        self.idempotency.shutdown().await;
        self.serving.abort();
    }
}

/// What is in the database in the end.
pub(crate) struct Stored {
    pub(crate) orders: u64,
    pub(crate) distinct: u64,
    pub(crate) paid: u64,
}

impl Stored {
    pub(crate) fn duplicates(&self) -> u64 {
        self.orders - self.distinct
    }
}

pub(crate) async fn stored(pool: &PgPool) -> Result<Stored, Error> {
    let count = "SELECT count(*), count(DISTINCT (customer, reference)), count(charge) FROM orders";
    let (orders, distinct, paid): (i64, i64, i64) = sqlx::query_as(count).fetch_one(pool).await?;
    Ok(Stored { orders: u64::try_from(orders)?, distinct: u64::try_from(distinct)?, paid: u64::try_from(paid)? })
}

/// Something failed that is not the customer's fault; a retry with the same key resumes.
enum ApiError {
    Idempotency(idem_runtime::Error),
    Database(sqlx::Error),
    /// The provider gave no charge; whether it made one, the next attempt finds out with the same key.
    NotCharged,
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        match self {
            Self::Idempotency(error) => error.into_response(),
            Self::Database(error) => {
                tracing::error!(%error, "an order failed");
                StatusCode::INTERNAL_SERVER_ERROR.into_response()
            }
            Self::NotCharged => StatusCode::BAD_GATEWAY.into_response(),
        }
    }
}

impl From<sqlx::Error> for ApiError {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error)
    }
}

impl From<idem_runtime::Error> for ApiError {
    fn from(error: idem_runtime::Error) -> Self {
        Self::Idempotency(error)
    }
}
