//! A stream by its trait.

#![allow(unused_variables)]

#[path = "../application.rs"]
mod application;

use application::*;

#[idempotent(scope = tenant.id, ttl = "24h")]
async fn create_order(
    tenant: Tenant,
    tx: &mut Tx,
    Json(new): Json<NewOrder>,
) -> impl futures_util::Stream<Item = Order> {
    let _ = save(tx).await;
    futures_util::stream::empty()
}

fn main() {
    routed(post(create_order));
}
