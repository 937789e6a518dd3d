//! A type that is no extractor, in the last place.

#![allow(unused_variables)]

#[path = "../application.rs"]
mod application;

use application::*;

struct Filter {
    total: i64,
}

#[idempotent(scope = tenant.id, ttl = "24h", state = AppState)]
async fn create_order(tenant: Tenant, tx: &mut Tx, filter: Filter) -> StatusCode {
    save(tx).await
}

fn main() {
    routed(post(create_order));
}
