//! An optional key for an operation.

#![allow(unused_variables)]

#[path = "../application.rs"]
mod application;

use application::*;

use idem_runtime::Operation;

#[idempotent(scope = tenant.id, ttl = "24h", key = optional)]
async fn create_order(tenant: Tenant, op: &mut Operation) -> StatusCode {
    check_out(op).await
}

fn main() {
    routed(post(create_order));
}
