//! What happened to key K? A client that gave up can ask.

use axum::Json;
use axum::extract::{Path, State};
use idem_runtime::{Idempotency, Status};

use super::customer::Customer;
use super::error::ApiError;

pub(super) async fn get_status(
    customer: Customer,
    State(idempotency): State<Idempotency>,
    Path(key): Path<String>,
) -> Result<Json<Status>, ApiError> {
    Ok(Json(idempotency.status(&customer.id, &key).await?))
}
