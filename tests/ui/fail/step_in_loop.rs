//! A step for each round of a loop.

#![allow(unused_variables)]

#[path = "../application.rs"]
mod application;

use application::*;

#[idempotent(scope = tenant.id, ttl = "24h")]
async fn create_order(tenant: Tenant, op: &mut Operation, Json(items): Json<Vec<i64>>) -> Result<StatusCode, ApiError> {
    for item in items {
        let _: i64 = op.step("charge item", async |_key| Ok::<_, ApiError>(item)).await?;
    }
    Ok(StatusCode::CREATED)
}

fn main() {
    routed(post(create_order));
}
