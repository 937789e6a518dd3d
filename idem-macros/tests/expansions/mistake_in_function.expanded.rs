::core::compile_error! {
    "option `key` must say the key of this call, because a function that takes `&Idempotency` has no header; use `key = message.id`"
}
async fn on_payment(_: &Idempotency, _: Payment) -> Result<Receipt, ConsumerError> {
    #[allow(dead_code, unused_variables)]
    async fn on_payment(
        idempotency: &Idempotency,
        tx: &mut Tx,
        payment: Payment,
    ) -> Result<Receipt, ConsumerError> {
        book(tx, payment).await
    }
    ::core::unimplemented!()
}
