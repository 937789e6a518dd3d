//! Who asks.

use axum::extract::FromRequestParts;
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use idem_runtime::Recovered;

use super::AppState;
use super::error::ApiError;

/// The customer whose API token the request carries.
#[derive(sqlx::FromRow)]
pub(super) struct Customer {
    pub(super) id: i64,
    pub(super) email: String,
}

impl FromRequestParts<AppState> for Customer {
    type Rejection = ApiError;

    /// Credentials are not stored, so a request that the completer sends has none: it carries whose operation it is.
    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, ApiError> {
        let customer = match parts.extensions.get::<Recovered>() {
            Some(recovered) => {
                let id: i64 = recovered.scope().parse().map_err(|_| ApiError::Unauthorized)?;
                sqlx::query_as("SELECT id, email FROM customers WHERE id = $1").bind(id)
            }
            None => {
                let token = bearer_token(parts).ok_or(ApiError::Unauthorized)?.as_bytes().to_vec();
                sqlx::query_as("SELECT id, email FROM customers WHERE token_digest = sha256($1)").bind(token)
            }
        };
        customer.fetch_optional(&state.pool).await?.ok_or(ApiError::Unauthorized)
    }
}

/// A person who looks after failed operations.
pub(super) struct Operator;

impl FromRequestParts<AppState> for Operator {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &AppState) -> Result<Self, ApiError> {
        match bearer_token(parts) {
            Some("operator-token") => Ok(Self),
            _ => Err(ApiError::Unauthorized),
        }
    }
}

fn bearer_token(parts: &Parts) -> Option<&str> {
    parts.headers.get(AUTHORIZATION)?.to_str().ok()?.strip_prefix("Bearer ")
}
