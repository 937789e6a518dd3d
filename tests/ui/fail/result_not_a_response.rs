//! A type that is no response.

#![allow(unused_variables)]

#[path = "../application.rs"]
mod application;

use application::*;

#[idempotent(scope = tenant.id, ttl = "24h")]
async fn create_order(tenant: Tenant, tx: &mut Tx, Json(new): Json<NewOrder>) -> Order {
    let _ = save(tx).await;
    Order { id: 1 }
}

fn main() {
    routed(post(create_order));
}
