//! A pool by its longer name.

#![allow(unused_variables)]

#[path = "../application.rs"]
mod application;

use application::*;

#[idempotent(scope = tenant.id, ttl = "24h")]
async fn create_order(tenant: Tenant, tx: &mut Tx, pool: sqlx::Pool<sqlx::Postgres>) -> StatusCode {
    save(tx).await
}

fn main() {
    routed(post(create_order));
}
