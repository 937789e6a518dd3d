//! An array as an argument.

#![allow(unused_variables)]

#[path = "../application.rs"]
mod application;

use application::*;

#[idempotent(scope = tenant.id, ttl = "24h")]
async fn create_order(tenant: Tenant, tx: &mut Tx, bytes: [u8; 16]) -> StatusCode {
    save(tx).await
}

fn main() {
    routed(post(create_order));
}
