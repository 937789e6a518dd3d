//! A stream of events.

#![allow(unused_variables)]

#[path = "../application.rs"]
mod application;

use application::*;

use axum::response::Sse;

struct Events;

#[idempotent(scope = tenant.id, ttl = "24h")]
async fn create_order(tenant: Tenant, tx: &mut Tx, Json(new): Json<NewOrder>) -> Sse<Events> {
    let _ = save(tx).await;
    Sse::new(Events)
}

fn main() {
    routed(post(create_order));
}
