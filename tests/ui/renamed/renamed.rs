//! The runtime under another name.

#![warn(clippy::pedantic)]
#![deny(warnings)]
#![forbid(unsafe_code)]

use axum::Json;
use axum::http::StatusCode;
use axum::routing::{MethodRouter, post};
use once::{Idempotency, Tx, idempotent};

#[idempotent(scope = global, ttl = "24h", state = Idempotency, crate = once)]
async fn create_order(tx: &mut Tx, Json(total): Json<i64>) -> StatusCode {
    let _ = sqlx::query("SELECT 1").bind(total).execute(tx).await;
    StatusCode::CREATED
}

mod facade {
    pub use once as idempotency;
}

#[idempotent(scope = global, ttl = "24h", crate = crate::facade::idempotency)]
async fn through_a_facade(tx: &mut facade::idempotency::Tx, Json(total): Json<i64>) -> StatusCode {
    let _ = sqlx::query("SELECT 1").bind(total).execute(tx).await;
    StatusCode::CREATED
}

fn main() {
    let _: [MethodRouter<Idempotency>; 2] = [post(create_order), post(through_a_facade)];
}
