//! A handler that nobody routes.

#![allow(unused_variables)]
#![deny(dead_code)]

#[path = "../application.rs"]
mod application;

use application::*;

#[idempotent(scope = tenant.id, ttl = "24h")]
async fn create_order(tenant: Tenant, tx: &mut Tx, Json(new): Json<NewOrder>) -> StatusCode {
    save(tx).await
}

fn main() {}
