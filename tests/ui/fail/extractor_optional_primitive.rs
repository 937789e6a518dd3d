//! An optional number as an argument.

#![allow(unused_variables)]

#[path = "../application.rs"]
mod application;

use application::*;

#[idempotent(scope = tenant.id, ttl = "24h")]
async fn create_order(tenant: Tenant, tx: &mut Tx, page: Option<u32>) -> StatusCode {
    save(tx).await
}

fn main() {
    routed(post(create_order));
}
