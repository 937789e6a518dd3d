//! Functions that are called, not routed.

#![warn(clippy::pedantic)]
#![deny(warnings)]
#![forbid(unsafe_code)]
#![allow(clippy::wildcard_imports)]

#[path = "../application.rs"]
mod application;

use application::*;
use std::future::Future;

use idem_runtime::Operation;

async fn book(tx: &mut Tx, amount: i64) -> Result<Receipt, ConsumerError> {
    let insert = sqlx::query_scalar("INSERT INTO bookings (amount) VALUES ($1) RETURNING id").bind(amount);
    Ok(Receipt { id: insert.fetch_one(tx).await? })
}

/// The inbox pattern.
#[idempotent(scope = "payments", key = payment.id, ttl = "7d")]
async fn on_payment(idempotency: &Idempotency, tx: &mut Tx, payment: Payment) -> Result<Receipt, ConsumerError> {
    book(tx, payment.amount).await
}

#[idempotent(scope = source, key = (payment.id), ttl = "7d", in_flight = "wait 1s", fingerprint = payment.amount)]
pub(crate) async fn borrows(
    source: &str,
    payment: &Payment,
    tx: &mut Tx,
    _: &Idempotency,
) -> Result<Receipt, ConsumerError> {
    book(tx, payment.amount).await
}

#[idempotent(scope = (source, "refunds"), key = format!("{}-{attempt}", payment.id), ttl = "7d", lease = "2m")]
async fn in_steps(
    op: &mut Operation,
    idempotency: &idem_runtime::Idempotency,
    source: String,
    payment: Payment,
    attempt: u32,
) -> Result<Receipt, ConsumerError> {
    let receipt: Receipt = op.transaction("book", async |tx| book(tx, -payment.amount).await).await?;
    Ok(receipt)
}

/// A task may run it.
fn sendable<F: Future + Send>(future: F) -> F {
    future
}

fn main() {
    let _ = async |idempotency: &Idempotency, payment: Payment, other: Payment, source: String| {
        let _ = borrows(&source, &payment, idempotency).await;
        let _ = sendable(on_payment(idempotency, payment)).await;
        let _ = sendable(in_steps(idempotency, source, other, 1)).await;
    };
}
