//! Handlers of several steps.

#![warn(clippy::pedantic)]
#![deny(warnings)]
#![forbid(unsafe_code)]
#![allow(clippy::wildcard_imports)]

#[path = "../application.rs"]
mod application;

use application::*;
use idem_runtime::{IdempotencyKey, Operation};

#[derive(Clone)]
struct Provider;

impl Provider {
    async fn charge(&self, key: IdempotencyKey, total: i64) -> Result<Receipt, ApiError> {
        std::future::ready(()).await;
        if key.as_str().is_empty() { Err(ApiError) } else { Ok(Receipt { id: total }) }
    }
}

async fn insert_order(tx: &mut Tx, order: &NewOrder) -> Result<i64, ApiError> {
    let insert = sqlx::query_scalar("INSERT INTO orders (total) VALUES ($1) RETURNING id").bind(order.total);
    Ok(insert.fetch_one(tx).await?)
}

#[idempotent(scope = tenant.id, ttl = "24h")]
async fn checkout(
    tenant: Tenant,
    op: &mut Operation,
    Extension(provider): Extension<Provider>,
    Json(new): Json<NewOrder>,
) -> Result<Json<Receipt>, ApiError> {
    let order: i64 = op.transaction("create order", async |tx| insert_order(tx, &new).await).await?;
    let receipt: Receipt = op.step("charge", async |key| provider.charge(key, new.total).await).await?;
    let paid = async |tx: &mut Tx| -> Result<(), ApiError> {
        sqlx::query("UPDATE orders SET paid = true WHERE id = $1").bind(order).execute(tx).await?;
        Ok(())
    };
    op.transaction("mark paid", paid).await?;
    Ok(Json(receipt))
}

#[idempotent(scope = global, ttl = "24h", fingerprint = new.number, lease = "30s", failures = "replay")]
async fn last_and_renamed(Json(new): Json<NewOrder>, steps: &mut idem_runtime::Operation) -> Result<String, ApiError> {
    let id: i64 = steps.transaction("order", async |tx| insert_order(tx, &new).await).await?;
    Ok(format!("{id} {}", steps.key()))
}

#[idempotent(scope = tenant.id, ttl = "24h")]
async fn no_steps(op: &mut Operation, tenant: Tenant) -> String {
    format!("{} {}", op.key(), tenant.name)
}

fn main() {
    routed(post(checkout));
    routed(post(last_and_renamed));
    routed(post(no_steps));
}
