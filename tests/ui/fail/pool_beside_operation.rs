//! A pool beside an operation.

#![allow(unused_variables)]

#[path = "../application.rs"]
mod application;

use application::*;

use idem_runtime::Operation;
use sqlx::PgPool;

#[idempotent(scope = tenant.id, ttl = "24h")]
async fn create_order(tenant: Tenant, op: &mut Operation, State(pool): State<PgPool>) -> StatusCode {
    check_out(op).await
}

fn main() {
    routed(post(create_order));
}
