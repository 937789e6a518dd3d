//! An error that cannot hold ours.

#![allow(unused_variables)]

#[path = "../application.rs"]
mod application;

use application::*;

struct ProviderError;

#[idempotent(scope = tenant.id, ttl = "24h")]
async fn create_order(tenant: Tenant, op: &mut Operation) -> StatusCode {
    let charged = op.step("charge", async |_key| Ok::<i64, ProviderError>(1)).await;
    if charged.is_ok() { StatusCode::CREATED } else { StatusCode::BAD_GATEWAY }
}

fn main() {
    routed(post(create_order));
}
