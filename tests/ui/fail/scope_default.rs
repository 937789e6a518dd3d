//! A default for those who are nobody.

#![allow(unused_variables)]

#[path = "../application.rs"]
mod application;

use application::*;

#[idempotent(scope = tenant.parent.unwrap_or_default(), ttl = "24h")]
async fn create_order(tenant: Tenant, tx: &mut Tx, Json(new): Json<NewOrder>) -> StatusCode {
    save(tx).await
}

fn main() {
    routed(post(create_order));
}
