//! A transaction inside a transaction.

#![allow(unused_variables)]

#[path = "../application.rs"]
mod application;

use application::*;

use idem_runtime::Operation;

#[idempotent(scope = tenant.id, ttl = "24h")]
async fn create_order(tenant: Tenant, op: &mut Operation, Json(new): Json<NewOrder>) -> Result<StatusCode, ApiError> {
    let _: i64 =
        op.transaction("outer", async |_tx| op.transaction("inner", async |_tx| Ok::<i64, ApiError>(1)).await).await?;
    Ok(StatusCode::CREATED)
}

fn main() {
    routed(post(create_order));
}
