//! An error that is no response.

#![allow(unused_variables)]

#[path = "../application.rs"]
mod application;

use application::*;

struct Failure;

#[idempotent(scope = tenant.id, ttl = "24h")]
async fn create_order(tenant: Tenant, tx: &mut Tx, Json(new): Json<NewOrder>) -> Result<StatusCode, Failure> {
    Ok(save(tx).await)
}

fn main() {
    routed(post(create_order));
}
