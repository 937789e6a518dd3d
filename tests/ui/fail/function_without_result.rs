//! A plain function that returns nothing.

#![allow(unused_variables)]

#[path = "../application.rs"]
mod application;

use application::*;

#[idempotent(scope = "payments", key = payment.id, ttl = "7d")]
async fn on_payment(idempotency: &Idempotency, tx: &mut Tx, payment: Payment) {
    let _ = book(tx, payment.amount).await;
}

fn main() {
    let _ = on_payment;
}
