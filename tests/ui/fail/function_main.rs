//! On `main`.

#![allow(unused_variables)]

#[path = "../application.rs"]
mod application;

use application::{Tx, idempotent};

#[idempotent(scope = global, ttl = "24h")]
async fn main(tx: &mut Tx) {}
