//! Every pattern that an argument may have.

#![warn(clippy::pedantic)]
#![deny(warnings)]
#![forbid(unsafe_code)]
#![allow(clippy::wildcard_imports)]

#[path = "../application.rs"]
mod application;

use application::*;

#[derive(Deserialize)]
struct Page {
    shop: String,
    size: u32,
}

#[idempotent(scope = shop, ttl = "24h")]
async fn takes_apart(
    State(AppState { ref idempotency, .. }): State<AppState>,
    Query(Page { shop, size: mut pages }): Query<Page>,
    Path((number, _)): Path<(i64, String)>,
    _: Tenant,
    tx: &mut Tx,
    Json(NewOrder { total, .. }): Json<NewOrder>,
) -> String {
    let _ = (idempotency.clone(), sqlx::query("SELECT 1").execute(tx).await);
    pages += 1;
    format!("{shop} {pages} {number} {total}")
}

#[idempotent(scope = number, ttl = "24h", fingerprint = (number, total))]
async fn uses_parts_of_it(
    Path((mut number, name)): Path<(i64, String)>,
    mut tenant: Tenant,
    tx: &mut Tx,
    Json(NewOrder { total, number: ref text }): Json<NewOrder>,
) -> String {
    let _ = sqlx::query("SELECT 1").execute(tx).await;
    number += 1;
    tenant.id += 1;
    format!("{number} {name} {} {total} {text}", tenant.id)
}

#[idempotent(scope = whole.id, ttl = "24h")]
async fn binds_the_whole(whole @ Tenant { id, .. }: Tenant, tx: &mut Tx) -> String {
    let _ = sqlx::query("SELECT 1").execute(tx).await;
    format!("{id} {}", whole.name)
}

fn main() {
    routed(post(takes_apart));
    routed(post(uses_parts_of_it));
    routed(post(binds_the_whole));
}
