//! A multipart body before the last argument.

#![allow(unused_variables)]

#[path = "../application.rs"]
mod application;

use application::*;

#[idempotent(scope = tenant.id, ttl = "24h")]
async fn create_order(parts: Multipart, tx: &mut Tx, tenant: Tenant) -> StatusCode {
    save(tx).await
}

fn main() {
    routed(post(create_order));
}
