#[idempotent(scope = "payments", ttl = "7d")]
async fn on_payment(
    idempotency: &Idempotency,
    tx: &mut Tx,
    payment: Payment,
) -> Result<Receipt, ConsumerError> {
    book(tx, payment).await
}
