//! On a method that a trait only declares.

#![allow(unused_variables)]

#[path = "../application.rs"]
mod application;

use application::*;

trait Orders {
    #[idempotent(scope = tenant.id, ttl = "24h")]
    async fn create_order(tenant: Tenant, tx: &mut Tx) -> StatusCode;
}

fn main() {}
