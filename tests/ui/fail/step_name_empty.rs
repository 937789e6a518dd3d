//! A step without a name.

#![allow(unused_variables)]

#[path = "../application.rs"]
mod application;

use application::*;

use idem_runtime::Operation;

#[idempotent(scope = tenant.id, ttl = "24h")]
async fn create_order(tenant: Tenant, op: &mut Operation, Json(new): Json<NewOrder>) -> Result<StatusCode, ApiError> {
    let _: i64 = op.step("", async |_key| Ok::<_, ApiError>(1)).await?;
    Ok(StatusCode::CREATED)
}

fn main() {
    routed(post(create_order));
}
