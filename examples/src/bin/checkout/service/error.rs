//! What can go wrong, and what the client hears of it.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::json;

/// A refusal (4xx) completes the operation and is replayed. A failure (5xx) gives the operation back with what it has done
/// so far: the next retry goes on from there.
#[derive(Debug)]
pub(super) enum ApiError {
    Unauthorized,
    UnknownOrder,
    OutOfStock,
    Declined { reason: String },
    NotFailed,
    Provider(reqwest::Error),
    Database(sqlx::Error),
    Idempotency(idem_runtime::Error),
}

impl From<reqwest::Error> for ApiError {
    fn from(error: reqwest::Error) -> Self {
        Self::Provider(error)
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

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let (status, error) = match self {
            Self::Unauthorized => (StatusCode::UNAUTHORIZED, "the API token is missing or unknown".to_owned()),
            Self::UnknownOrder => (StatusCode::NOT_FOUND, "there is no such order".to_owned()),
            Self::OutOfStock => (StatusCode::CONFLICT, "not enough in stock".to_owned()),
            Self::Declined { reason } => (StatusCode::PAYMENT_REQUIRED, format!("the card was declined: {reason}")),
            Self::NotFailed => (StatusCode::NOT_FOUND, "there is no such failed operation".to_owned()),
            Self::Provider(error) => {
                tracing::error!(%error, "the payment provider failed");
                (StatusCode::BAD_GATEWAY, "the payment provider has a problem; please retry".to_owned())
            }
            Self::Database(error) => {
                tracing::error!(%error, "the database failed");
                (StatusCode::INTERNAL_SERVER_ERROR, "the shop has a problem; please retry".to_owned())
            }
            Self::Idempotency(error) => return error.into_response(),
        };
        (status, Json(json!({ "error": error }))).into_response()
    }
}
