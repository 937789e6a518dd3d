//! A path without `Deserialize`.

#![allow(unused_variables)]

#[path = "../application.rs"]
mod application;

use application::*;

struct Filter {
    total: i64,
}

#[idempotent(scope = tenant.id, ttl = "24h")]
async fn create_order(tenant: Tenant, tx: &mut Tx, Path(filter): Path<Filter>) -> StatusCode {
    save(tx).await
}

fn main() {
    routed(post(create_order));
}
