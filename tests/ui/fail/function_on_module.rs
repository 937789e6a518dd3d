//! On a module.

#![allow(unused_variables)]

#[path = "../application.rs"]
mod application;

use application::*;

#[idempotent(scope = tenant.id, ttl = "24h")]
mod orders {
    pub fn total() -> i64 {
        1
    }
}

fn main() {
    let _ = orders::total();
}
