//! The handler of the design's first page.

use axum::extract::{FromRef, FromRequestParts};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use idem_runtime::{Idempotency, Tx, idempotent};
use serde::{Deserialize, Serialize};

#[derive(Clone, FromRef)]
struct AppState {
    idempotency: Idempotency,
}

struct Tenant {
    id: i64,
}

impl<S: Sync> FromRequestParts<S> for Tenant {
    type Rejection = StatusCode;

    async fn from_request_parts(_: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        Ok(Self { id: 1 })
    }
}

#[derive(Deserialize)]
struct NewOrder {
    total: i64,
}

#[derive(Serialize)]
struct Order {
    id: i64,
}

struct ApiError;

impl From<sqlx::Error> for ApiError {
    fn from(_: sqlx::Error) -> Self {
        Self
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        StatusCode::INTERNAL_SERVER_ERROR.into_response()
    }
}

#[idempotent(scope = tenant.id, ttl = "24h")]
async fn create_order(
    tenant: Tenant,
    tx: &mut Tx,
    Json(new): Json<NewOrder>,
) -> Result<(StatusCode, Json<Order>), ApiError> {
    let id = sqlx::query_scalar("INSERT INTO orders (tenant, total) VALUES ($1, $2) RETURNING id")
        .bind(tenant.id)
        .bind(new.total)
        .fetch_one(&mut *tx)
        .await?;
    Ok((StatusCode::CREATED, Json(Order { id })))
}

fn main() {
    let _: Router<AppState> = Router::new().route("/orders", post(create_order));
}
