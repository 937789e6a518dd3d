//! What the completer gave up, for a person.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use idem_runtime::{FailedOperation, Idempotency};
use serde::Deserialize;

use super::customer::Operator;
use super::error::ApiError;

/// How many a page shows.
const PAGE: u32 = 100;

pub(super) async fn list_failed(
    _: Operator,
    State(idempotency): State<Idempotency>,
) -> Result<Json<Vec<FailedOperation>>, ApiError> {
    Ok(Json(idempotency.failed_operations(PAGE).await?))
}

#[derive(Deserialize)]
pub(super) struct Retry {
    scope: String,
    key: String,
}

/// Hands an operation to the completer again, once its cause is mended.
pub(super) async fn retry_failed(
    _: Operator,
    State(idempotency): State<Idempotency>,
    Json(retry): Json<Retry>,
) -> Result<StatusCode, ApiError> {
    let failed = idempotency.failed_operations(PAGE).await?;
    let named = |operation: &&FailedOperation| operation.scope == retry.scope && operation.key == retry.key;
    let operation = failed.iter().find(named).ok_or(ApiError::NotFailed)?;
    if idempotency.retry_failed(operation).await? { Ok(StatusCode::ACCEPTED) } else { Err(ApiError::NotFailed) }
}
