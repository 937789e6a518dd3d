async fn on_payment(
    arg0: &Idempotency,
    arg1: Payment,
) -> Result<Receipt, ConsumerError> {
    async fn on_payment(
        #[allow(unused_variables)]
        idempotency: &Idempotency,
        tx: &mut Tx,
        #[allow(unused_variables)]
        payment: Payment,
    ) -> Result<Receipt, ConsumerError> {
        book(tx, payment).await
    }
    #[allow(unused_variables)]
    let (scope, key) = {
        let payment = &arg1;
        (
            ::idem_runtime::attribute::scope(&"payments"),
            ::idem_runtime::attribute::key(&payment.id),
        )
    };
    ::idem_runtime::attribute::returned(
        ::idem_runtime::__private::Call::function(arg0)
            .handler(
                ::core::concat!(::core::module_path!(), "::on_payment"),
                ::core::time::Duration::from_secs(604_800),
            )
            .scope(scope)
            .key(key)
            .call_transaction(async move |tx: &mut ::idem_runtime::Tx| {
                ::idem_runtime::attribute::result(on_payment(arg0, tx, arg1).await)
            })
            .await,
    )
}
