//! A method with `self`.

#![allow(unused_variables)]

#[path = "../application.rs"]
mod application;

use application::*;

struct Orders;

impl Orders {
    #[idempotent(scope = tenant.id, ttl = "24h")]
    async fn create_order(&self, tenant: Tenant, tx: &mut Tx) -> StatusCode {
        save(tx).await
    }
}

fn main() {
    let _ = Orders::create_order;
}
