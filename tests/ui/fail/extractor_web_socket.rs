//! A connection without an end.

#![allow(unused_variables)]

#[path = "../application.rs"]
mod application;

use application::*;

struct WebSocketUpgrade;

#[idempotent(scope = tenant.id, ttl = "24h")]
async fn create_order(tenant: Tenant, socket: WebSocketUpgrade, tx: &mut Tx) -> StatusCode {
    save(tx).await
}

fn main() {
    routed(post(create_order));
}
