//! A step name that is computed.

#![allow(unused_variables)]

#[path = "../application.rs"]
mod application;

use application::*;

use idem_runtime::Operation;

#[idempotent(scope = tenant.id, ttl = "24h")]
async fn create_order(tenant: Tenant, op: &mut Operation, Json(new): Json<NewOrder>) -> Result<StatusCode, ApiError> {
    for line in 0..2 {
        let _: i64 = op.step(&format!("line {line}"), async |_key| Ok::<_, ApiError>(1)).await?;
    }
    Ok(StatusCode::CREATED)
}

fn main() {
    routed(post(create_order));
}
