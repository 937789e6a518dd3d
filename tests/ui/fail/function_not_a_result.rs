//! A plain function that returns no `Result`.

#![allow(unused_variables)]

#[path = "../application.rs"]
mod application;

use application::*;

#[idempotent(scope = "payments", key = payment.id, ttl = "7d")]
async fn on_payment(idempotency: &Idempotency, tx: &mut Tx, payment: Payment) -> Receipt {
    let _ = book(tx, payment.amount).await;
    Receipt { id: payment.amount }
}

fn main() {
    let _ = on_payment;
}
