//! More extractors than a handler can have.

#![allow(unused_variables)]

#[path = "../application.rs"]
mod application;

use application::*;

#[idempotent(scope = tenant.id, ttl = "24h")]
async fn create_order(
    tenant: Tenant,
    tx: &mut Tx,
    extra_a: Tenant,
    extra_b: Tenant,
    extra_c: Tenant,
    extra_d: Tenant,
    extra_e: Tenant,
    extra_f: Tenant,
    extra_g: Tenant,
    extra_h: Tenant,
    extra_i: Tenant,
    extra_j: Tenant,
    extra_k: Tenant,
    extra_l: Tenant,
    extra_m: Tenant,
    extra_n: Tenant,
    extra_o: Tenant,
) -> StatusCode {
    save(tx).await
}

fn main() {
    routed(post(create_order));
}
