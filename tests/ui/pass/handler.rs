//! The handler of the first page.

#![warn(clippy::pedantic)]
#![deny(warnings)]
#![forbid(unsafe_code)]
#![allow(clippy::wildcard_imports)]

#[path = "../application.rs"]
mod application;

use application::*;

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

/// What only the attribute uses is used.
#[idempotent(scope = tenant.id, ttl = "24h", key = number, fingerprint = format!("{total}"))]
async fn count_orders(
    tenant: Tenant,
    tx: &mut Tx,
    Json(NewOrder { number, total }): Json<NewOrder>,
) -> Result<StatusCode, ApiError> {
    sqlx::query("UPDATE counters SET orders = orders + 1").execute(&mut *tx).await?;
    Ok(StatusCode::CREATED)
}

fn main() {
    routed(post(create_order));
    routed(post(count_orders));
}
