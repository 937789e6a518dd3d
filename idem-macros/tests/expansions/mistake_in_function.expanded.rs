::core::compile_error! {
    "option `key` must say the key of this call, because a function that takes `&Idempotency` has no header; use `key = message.id`"
}
async fn on_payment(
    arg0: &Idempotency,
    arg1: Payment,
) -> Result<Receipt, ConsumerError> {
    async fn on_payment(
        #[allow(unused_variables)]
        idempotency: &Idempotency,
        tx: &mut Tx,
        payment: Payment,
    ) -> Result<Receipt, ConsumerError> {
        book(tx, payment).await
    }
    let scope = ::idem_runtime::attribute::scope(&"payments");
    ::idem_runtime::attribute::returned(
        ::idem_runtime::__private::Call::function(arg0)
            .handler(
                ::core::concat!(::core::module_path!(), "::on_payment"),
                ::core::time::Duration::from_secs(604_800),
            )
            .scope(scope)
            .call_transaction(async move |tx: &mut ::idem_runtime::Tx| {
                ::idem_runtime::attribute::result(on_payment(arg0, tx, arg1).await)
            })
            .await,
    )
}
