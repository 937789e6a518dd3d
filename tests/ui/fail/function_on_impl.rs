//! On an `impl` instead of the functions in it.

#![allow(unused_variables)]

#[path = "../application.rs"]
mod application;

use application::*;

struct Orders;

#[idempotent(scope = tenant.id, ttl = "24h")]
impl Orders {
    async fn create_order(tenant: Tenant, tx: &mut Tx) -> StatusCode {
        save(tx).await
    }
}

fn main() {
    let _ = Orders::create_order;
}
