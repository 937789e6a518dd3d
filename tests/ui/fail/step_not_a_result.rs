//! A step that returns no `Result`.

#![allow(unused_variables)]

#[path = "../application.rs"]
mod application;

use application::*;

#[idempotent(scope = tenant.id, ttl = "24h")]
async fn create_order(tenant: Tenant, op: &mut Operation) -> Result<StatusCode, ApiError> {
    let charge: i64 = op.step("charge", async |_key| 1_i64).await?;
    drop(charge);
    Ok(StatusCode::CREATED)
}

fn main() {
    routed(post(create_order));
}
