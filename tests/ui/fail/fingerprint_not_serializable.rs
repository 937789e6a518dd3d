//! A fingerprint of a type without `Serialize`.

#![allow(unused_variables)]

#[path = "../application.rs"]
mod application;

use application::*;

#[idempotent(scope = tenant.id, fingerprint = new, ttl = "24h")]
async fn create_order(tenant: Tenant, tx: &mut Tx, Json(new): Json<NewOrder>) -> StatusCode {
    save(tx).await
}

fn main() {
    routed(post(create_order));
}
