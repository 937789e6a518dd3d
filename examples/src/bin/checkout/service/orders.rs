//! Reading needs no key.

use axum::Json;
use axum::extract::{Path, State};
use serde::Serialize;
use sqlx::PgPool;

use super::customer::Customer;
use super::error::ApiError;

#[derive(Serialize, sqlx::FromRow)]
pub(super) struct OrderView {
    id: i64,
    product: String,
    quantity: i32,
    total_cents: i64,
    status: String,
}

pub(super) async fn get_order(
    customer: Customer,
    State(pool): State<PgPool>,
    Path(id): Path<i64>,
) -> Result<Json<OrderView>, ApiError> {
    let select = "SELECT id, product, quantity, total_cents, status FROM orders WHERE id = $1 AND customer_id = $2";
    let order = sqlx::query_as(select).bind(id).bind(customer.id).fetch_optional(&pool).await?;
    order.map(Json).ok_or(ApiError::UnknownOrder)
}
