//! `Self` of the type around.

#![allow(unused_variables)]

#[path = "../application.rs"]
mod application;

use application::*;

struct Orders;

impl Orders {
    #[idempotent(scope = tenant.id, ttl = "24h")]
    async fn create(tenant: Tenant, tx: &mut Tx) -> StatusCode {
        Self::insert(tx).await
    }

    async fn insert(tx: &mut Tx) -> StatusCode {
        save(tx).await
    }
}

fn main() {
    routed(post(Orders::create));
}
