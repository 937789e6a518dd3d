//! An error that cannot hold ours.

#![allow(unused_variables)]

#[path = "../application.rs"]
mod application;

use application::*;

struct Failure;

#[idempotent(scope = "payments", key = payment.id, ttl = "7d")]
async fn on_payment(idempotency: &Idempotency, tx: &mut Tx, payment: Payment) -> Result<Receipt, Failure> {
    book(tx, payment.amount).await.map_err(|_| Failure)
}

fn main() {
    let _ = on_payment;
}
