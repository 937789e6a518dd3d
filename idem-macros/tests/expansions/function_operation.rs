#[idempotent(scope = source, key = (payment.id), ttl = "7d", lease = "60s")]
async fn on_payment(
    source: &str,
    payment: &Payment,
    op: &mut Operation,
    idempotency: &Idempotency,
) -> Result<Receipt, ConsumerError> {
    op.step("book", async |key| book(key, payment).await).await
}
