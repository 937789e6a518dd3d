//! A result that cannot be read back.

#![allow(unused_variables)]

#[path = "../application.rs"]
mod application;

use application::*;

#[derive(Serialize)]
struct Balance {
    amount: i64,
}

#[idempotent(scope = "payments", key = payment.id, ttl = "7d")]
async fn on_payment(idempotency: &Idempotency, tx: &mut Tx, payment: Payment) -> Result<Balance, ConsumerError> {
    let receipt = book(tx, payment.amount).await?;
    Ok(Balance { amount: receipt.id })
}

fn main() {
    let _ = on_payment;
}
