//! The same step twice.

#![allow(unused_variables)]

#[path = "../application.rs"]
mod application;

use application::*;

use idem_runtime::Operation;

#[idempotent(scope = tenant.id, ttl = "24h")]
async fn create_order(tenant: Tenant, op: &mut Operation, Json(new): Json<NewOrder>) -> Result<StatusCode, ApiError> {
    let first: i64 = op.step("charge", async |_key| Ok::<_, ApiError>(1)).await?;
    let second: i64 = op.step("charge", async |_key| Ok::<_, ApiError>(2)).await?;
    drop((first, second));
    Ok(StatusCode::CREATED)
}

fn main() {
    routed(post(create_order));
}
