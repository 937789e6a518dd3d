//! The application that the cases are written against.

#![allow(dead_code, unused_imports, clippy::pedantic)]

pub use axum::extract::{Form, FromRef, FromRequestParts, Multipart, Path, Query, Request, State};
pub use axum::http::StatusCode;
pub use axum::http::request::Parts;
pub use axum::response::{IntoResponse, Response};
pub use axum::routing::{MethodRouter, post};
pub use axum::{Extension, Json, Router};
pub use idem_runtime::Operation;
pub use idem_runtime::{Idempotency, Tx, idempotent};
pub use serde::{Deserialize, Serialize};

/// What the router of the application is built from.
#[derive(Clone, FromRef)]
pub struct AppState {
    pub idempotency: Idempotency,
}

/// Whose requests share their keys.
pub struct Tenant {
    pub id: i64,
    pub name: String,
    pub parent: Option<i64>,
    pub share: f64,
}

impl<S: Sync> FromRequestParts<S> for Tenant {
    type Rejection = StatusCode;

    async fn from_request_parts(_: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        Ok(Self { id: 1, name: "one".to_owned(), parent: None, share: 0.5 })
    }
}

#[derive(Deserialize)]
pub struct NewOrder {
    pub number: String,
    pub total: i64,
}

#[derive(Serialize)]
pub struct Order {
    pub id: i64,
}

pub struct ApiError;

impl From<sqlx::Error> for ApiError {
    fn from(_: sqlx::Error) -> Self {
        Self
    }
}

impl From<idem_runtime::Error> for ApiError {
    fn from(_: idem_runtime::Error) -> Self {
        Self
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        StatusCode::INTERNAL_SERVER_ERROR.into_response()
    }
}

/// A message of a queue.
pub struct Payment {
    pub id: String,
    pub amount: i64,
}

#[derive(Serialize, Deserialize)]
pub struct Receipt {
    pub id: i64,
}

pub enum ConsumerError {
    Idempotency(idem_runtime::Error),
    Database(sqlx::Error),
}

impl From<idem_runtime::Error> for ConsumerError {
    fn from(error: idem_runtime::Error) -> Self {
        Self::Idempotency(error)
    }
}

impl From<sqlx::Error> for ConsumerError {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error)
    }
}

/// The handler in use: what it cascades into if its attribute leaves nothing that the router accepts.
pub fn routed(_: MethodRouter<AppState>) {}

/// Writes through the transaction.
pub async fn save(tx: &mut Tx) -> StatusCode {
    let saved = sqlx::query("INSERT INTO orders DEFAULT VALUES").execute(tx).await;
    if saved.is_ok() { StatusCode::CREATED } else { StatusCode::INTERNAL_SERVER_ERROR }
}

/// Books a payment through the transaction.
pub async fn book(tx: &mut Tx, amount: i64) -> Result<Receipt, ConsumerError> {
    let insert = sqlx::query_scalar("INSERT INTO bookings (amount) VALUES ($1) RETURNING id").bind(amount);
    Ok(Receipt { id: insert.fetch_one(tx).await? })
}

/// Books through a transaction of the operation.
pub async fn check_out(op: &mut Operation) -> StatusCode {
    let booked: Result<Receipt, ConsumerError> = op.transaction("book", async |tx| book(tx, 1).await).await;
    if booked.is_ok() { StatusCode::CREATED } else { StatusCode::INTERNAL_SERVER_ERROR }
}
