//! A plain function without `key`.

#![allow(unused_variables)]

#[path = "../application.rs"]
mod application;

use application::*;

#[idempotent(scope = "payments", ttl = "7d")]
async fn on_payment(idempotency: &Idempotency, tx: &mut Tx, payment: Payment) -> Result<Receipt, ConsumerError> {
    book(tx, payment.amount).await
}

fn main() {
    let _ = on_payment;
}
