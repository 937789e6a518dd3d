//! The bytes of the body before the last argument.

#![allow(unused_variables)]

#[path = "../application.rs"]
mod application;

use application::*;

#[idempotent(scope = tenant.id, ttl = "24h")]
async fn create_order(tenant: Tenant, tx: &mut Tx, raw: axum::body::Bytes, Path(id): Path<i64>) -> StatusCode {
    save(tx).await
}

fn main() {
    routed(post(create_order));
}
