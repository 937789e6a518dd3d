//! Both `tx` and `op`.

#![allow(unused_variables)]

#[path = "../application.rs"]
mod application;

use application::*;

use idem_runtime::Operation;

#[idempotent(scope = tenant.id, ttl = "24h")]
async fn create_order(tenant: Tenant, tx: &mut Tx, op: &mut Operation) -> StatusCode {
    save(tx).await
}

fn main() {
    routed(post(create_order));
}
