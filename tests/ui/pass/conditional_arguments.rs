//! Arguments that depend on a `cfg`.

#![warn(clippy::pedantic)]
#![deny(warnings)]
#![forbid(unsafe_code)]
#![allow(clippy::wildcard_imports)]

#[path = "../application.rs"]
mod application;

use application::*;

#[idempotent(scope = tenant.id, ttl = "24h")]
async fn in_the_middle(
    tenant: Tenant,
    #[cfg(test)] Path(number): Path<i64>,
    #[cfg(not(test))] Query(order): Query<NewOrder>,
    tx: &mut Tx,
    Json(new): Json<NewOrder>,
) -> String {
    let _ = sqlx::query("SELECT 1").execute(tx).await;
    #[cfg(not(test))]
    let number = order.total;
    format!("{} {number} {}", tenant.id, new.total)
}

#[idempotent(scope = (tenant.id, new.number), ttl = "24h")]
async fn one_of_two_bodies(
    tenant: Tenant,
    tx: &mut Tx,
    #[cfg(test)] Form(new): Form<NewOrder>,
    #[cfg(not(test))] Json(new): Json<NewOrder>,
) -> String {
    let _ = sqlx::query("SELECT 1").execute(tx).await;
    format!("{} {}", tenant.id, new.total)
}

#[idempotent(scope = tenant.id, ttl = "24h")]
async fn no_body_today(tenant: Tenant, tx: &mut Tx, #[cfg(test)] Json(new): Json<NewOrder>) -> String {
    let _ = sqlx::query("SELECT 1").execute(tx).await;
    #[cfg(test)]
    drop(new);
    tenant.name
}

#[idempotent(scope = global, ttl = "24h")]
async fn nothing_is_sure(
    #[cfg(test)] tenant: Tenant,
    tx: &mut Tx,
    #[cfg(all(test, unix))]
    #[cfg(not(windows))]
    Json(new): Json<NewOrder>,
) {
    let _ = sqlx::query("SELECT 1").execute(tx).await;
    #[cfg(test)]
    drop(tenant);
    #[cfg(all(test, unix))]
    #[cfg(not(windows))]
    drop(new);
}

fn main() {
    routed(post(in_the_middle));
    routed(post(one_of_two_bodies));
    routed(post(no_body_today));
    routed(post(nothing_is_sure));
}
