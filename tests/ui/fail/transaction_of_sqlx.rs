//! A transaction of sqlx.

#![allow(unused_variables)]

#[path = "../application.rs"]
mod application;

use application::*;

use sqlx::{Postgres, Transaction};

#[idempotent(scope = tenant.id, ttl = "24h")]
async fn create_order(tenant: Tenant, tx: &mut Transaction<'_, Postgres>) -> StatusCode {
    save(tx).await
}

fn main() {
    routed(post(create_order));
}
