//! A transaction that depends on a `cfg`.

#![allow(unused_variables)]

#[path = "../application.rs"]
mod application;

use application::*;

#[idempotent(scope = tenant.id, ttl = "24h")]
async fn create_order(tenant: Tenant, #[cfg(test)] tx: &mut Tx) -> StatusCode {
    save(tx).await
}

fn main() {
    routed(post(create_order));
}
