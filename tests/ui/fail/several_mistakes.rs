//! Every mistake of a function at once.

#![allow(unused_variables)]

#[path = "../application.rs"]
mod application;

use application::*;

#[idempotent(scope = tennant.id, ttl = "24", in_flght = "reject")]
fn create_order(tenant: Tenant, tx: Tx, id: i64, State(pool): State<sqlx::PgPool>) -> axum::body::Body {
    let _ = save(tx);
    axum::body::Body::empty()
}

fn main() {
    routed(post(create_order));
}
