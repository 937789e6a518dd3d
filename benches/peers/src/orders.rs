//! The handler that every system wraps: it writes one order.

use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use axum::{Json, Router};
use peers_sqlx::PgPool;
use serde_json::{Value, json};

/// In one statement, which is the least that a handler can do without a transaction of its own.
pub(crate) const INSERT: &str = "INSERT INTO orders (tenant, product, quantity) VALUES ('tenant-1', $1, $2) RETURNING id";

/// How long the slow handler takes after its write.
pub(crate) const SLOW: Duration = Duration::from_millis(100);

pub(crate) fn product_and_quantity(body: &Value) -> (i64, i32) {
    let number = |name: &str| body[name].as_i64().unwrap_or_default();
    (number("product"), i32::try_from(number("quantity")).unwrap_or_default())
}

pub(crate) fn created(id: i64, body: &Value) -> (StatusCode, Json<Value>) {
    let (product, quantity) = product_and_quantity(body);
    (StatusCode::CREATED, Json(json!({ "id": id, "product": product, "quantity": quantity })))
}

type Created = Result<(StatusCode, Json<Value>), (StatusCode, String)>;

async fn create(State(pool): State<PgPool>, Json(body): Json<Value>) -> Created {
    let (product, quantity) = product_and_quantity(&body);
    let inserted = peers_sqlx::query_scalar(INSERT).bind(product).bind(quantity).fetch_one(&pool).await;
    let id = inserted.map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
    Ok(created(id, &body))
}

async fn slow(state: State<PgPool>, body: Json<Value>) -> Created {
    let answer = create(state, body).await;
    tokio::time::sleep(SLOW).await;
    answer
}

async fn crash(state: State<PgPool>, body: Json<Value>) -> Created {
    let _ = create(state, body).await;
    std::process::abort()
}

/// The routes as an application has them before it becomes idempotent. `crashing` is what a process does that is about
/// to end in the middle of a handler.
pub(crate) fn routes(pool: PgPool, crashing: bool) -> Router {
    let crash = if crashing { post(crash) } else { post(create) };
    Router::new()
        .route("/orders", post(create))
        .route("/slow", post(slow))
        .route("/crash", crash)
        .with_state(pool)
}
