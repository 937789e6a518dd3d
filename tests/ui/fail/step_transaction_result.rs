//! A result of a transaction that cannot be recorded.

#![allow(unused_variables)]

#[path = "../application.rs"]
mod application;

use application::*;

struct Charge;

#[idempotent(scope = tenant.id, ttl = "24h")]
async fn create_order(tenant: Tenant, op: &mut Operation) -> Result<StatusCode, ApiError> {
    let charge = op.transaction("charge", async |_tx| Ok::<Charge, ApiError>(Charge)).await?;
    drop(charge);
    Ok(StatusCode::CREATED)
}

fn main() {
    routed(post(create_order));
}
