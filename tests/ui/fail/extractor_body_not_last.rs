//! A body before the last argument.

#![allow(unused_variables)]

#[path = "../application.rs"]
mod application;

use application::*;

#[idempotent(scope = tenant.id, ttl = "24h")]
async fn create_order(tx: &mut Tx, Json(new): Json<NewOrder>, tenant: Tenant) -> StatusCode {
    save(tx).await
}

fn main() {
    routed(post(create_order));
}
