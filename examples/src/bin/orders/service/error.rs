//! What can go wrong, and what the client hears of it.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::json;

/// A refusal (4xx) is rolled back, stored and replayed like any other outcome. A failure (5xx) is rolled back and
/// releases the key: the next retry runs.
#[derive(Debug)]
pub(super) enum ApiError {
    Unauthorized,
    UnknownProduct,
    UnknownOrder,
    OutOfStock,
    InsufficientBalance { total_cents: i64 },
    AlreadyCancelled,
    Database(sqlx::Error),
}

impl From<sqlx::Error> for ApiError {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error)
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let (status, error) = match self {
            Self::Unauthorized => (StatusCode::UNAUTHORIZED, "the API token is missing or unknown".to_owned()),
            Self::UnknownProduct => (StatusCode::NOT_FOUND, "there is no such product".to_owned()),
            Self::UnknownOrder => (StatusCode::NOT_FOUND, "there is no such order".to_owned()),
            Self::OutOfStock => (StatusCode::CONFLICT, "not enough in stock".to_owned()),
            Self::InsufficientBalance { total_cents } => {
                (StatusCode::PAYMENT_REQUIRED, format!("the balance does not cover {total_cents} cents"))
            }
            Self::AlreadyCancelled => (StatusCode::CONFLICT, "the order is cancelled already".to_owned()),
            Self::Database(error) => {
                tracing::error!(%error, "the database failed");
                (StatusCode::INTERNAL_SERVER_ERROR, "the order service has a problem; please retry".to_owned())
            }
        };
        (status, Json(json!({ "error": error }))).into_response()
    }
}
