//! Who asks.

use axum::extract::FromRequestParts;
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;

use super::AppState;
use super::error::ApiError;

/// The customer whose API token the request carries.
#[derive(sqlx::FromRow)]
pub(super) struct Customer {
    pub(super) id: i64,
    pub(super) name: String,
}

impl FromRequestParts<AppState> for Customer {
    type Rejection = ApiError;

    /// Runs before the claim and gives its connection back: an operation itself needs one connection and no more.
    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, ApiError> {
        let header = parts.headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let token = header.and_then(|value| value.strip_prefix("Bearer ")).ok_or(ApiError::Unauthorized)?;
        sqlx::query_as("SELECT id, name FROM customers WHERE token_digest = sha256($1)")
            .bind(token.as_bytes())
            .fetch_optional(&state.pool)
            .await?
            .ok_or(ApiError::Unauthorized)
    }
}
