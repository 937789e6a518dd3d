//! A body of unknown length.

#![allow(unused_variables)]

#[path = "../application.rs"]
mod application;

use application::*;

use axum::body::Body;

#[idempotent(scope = tenant.id, ttl = "24h")]
async fn create_order(tenant: Tenant, tx: &mut Tx, Json(new): Json<NewOrder>) -> Result<(StatusCode, Body), ApiError> {
    Ok((save(tx).await, Body::empty()))
}

fn main() {
    routed(post(create_order));
}
