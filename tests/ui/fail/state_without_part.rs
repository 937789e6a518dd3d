//! A part that the state does not have.

#![allow(unused_variables)]

#[path = "../application.rs"]
mod application;

use application::*;

#[derive(Clone)]
struct Mailer;

#[idempotent(scope = tenant.id, ttl = "24h", state = AppState)]
async fn create_order(tenant: Tenant, tx: &mut Tx, State(mailer): State<Mailer>) -> StatusCode {
    save(tx).await
}

fn main() {
    routed(post(create_order));
}
