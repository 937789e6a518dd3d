//! A pool in an extension.

#![allow(unused_variables)]

#[path = "../application.rs"]
mod application;

use application::*;

use sqlx::PgPool;

#[idempotent(scope = tenant.id, ttl = "24h")]
async fn create_order(tenant: Tenant, tx: &mut Tx, Extension(pool): Extension<PgPool>) -> StatusCode {
    save(tx).await
}

fn main() {
    routed(post(create_order));
}
