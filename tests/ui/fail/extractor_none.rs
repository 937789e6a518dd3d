//! A type that is no extractor.

#![allow(unused_variables)]

#[path = "../application.rs"]
mod application;

use application::*;

struct Filter {
    total: i64,
}

#[idempotent(scope = tenant.id, ttl = "24h", state = AppState)]
async fn create_order(filter: Filter, tx: &mut Tx, tenant: Tenant) -> StatusCode {
    save(tx).await
}

fn main() {
    routed(post(create_order));
}
