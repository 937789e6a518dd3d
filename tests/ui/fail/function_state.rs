//! A plain function with a state.

#![allow(unused_variables)]

#[path = "../application.rs"]
mod application;

use application::*;

#[idempotent(scope = "payments", key = payment.id, ttl = "7d", state = AppState)]
async fn on_payment(idempotency: &Idempotency, tx: &mut Tx, payment: Payment) -> Result<Receipt, ConsumerError> {
    book(tx, payment.amount).await
}

fn main() {
    let _ = on_payment;
}
