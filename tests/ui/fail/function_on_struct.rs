//! On a struct.

#![allow(unused_variables)]

#[path = "../application.rs"]
mod application;

use application::*;

#[idempotent(scope = tenant.id, ttl = "24h")]
struct CreateOrder {
    total: i64,
}

fn main() {
    let _ = CreateOrder { total: 1 }.total;
}
