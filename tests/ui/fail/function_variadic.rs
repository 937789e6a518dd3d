//! A variadic function.

#![allow(unused_variables)]

#[path = "../application.rs"]
mod application;

use application::*;

#[idempotent(scope = tenant.id, ttl = "24h")]
async unsafe extern "C" fn create_order(tenant: Tenant, tx: &mut Tx, mut rest: ...) -> StatusCode {
    save(tx).await
}

fn main() {
    routed(post(create_order));
}
