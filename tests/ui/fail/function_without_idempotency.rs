//! A consumer that forgot where its keys are.

#![allow(unused_variables)]

#[path = "../application.rs"]
mod application;

use application::*;

#[idempotent(scope = "payments", key = payment.id, ttl = "7d")]
async fn on_payment(tx: &mut Tx, payment: Payment) -> Result<Receipt, ConsumerError> {
    book(tx, payment.amount).await
}

fn main() {
    let _ = on_payment;
}
