//! A step in a closure.

#![allow(unused_variables)]

#[path = "../application.rs"]
mod application;

use application::*;

#[idempotent(scope = tenant.id, ttl = "24h")]
async fn create_order(tenant: Tenant, op: &mut Operation) -> Result<StatusCode, ApiError> {
    let mut charge = async |item: i64| op.step("charge", async move |_key| Ok::<_, ApiError>(item)).await;
    let _: i64 = charge(1).await? + charge(2).await?;
    Ok(StatusCode::CREATED)
}

fn main() {
    routed(post(create_order));
}
