//! A stream of events.

#![allow(unused_variables)]

#[path = "../application.rs"]
mod application;

use application::*;

use std::convert::Infallible;

use axum::response::Sse;
use axum::response::sse::Event;
use futures_util::stream::Empty;

#[idempotent(scope = tenant.id, ttl = "24h")]
async fn create_order(tenant: Tenant, tx: &mut Tx, Json(new): Json<NewOrder>) -> Sse<Empty<Result<Event, Infallible>>> {
    let _ = save(tx).await;
    Sse::new(futures_util::stream::empty())
}

fn main() {
    routed(post(create_order));
}
