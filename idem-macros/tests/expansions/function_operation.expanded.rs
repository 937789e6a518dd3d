async fn on_payment(
    arg0: &str,
    arg1: &Payment,
    arg2: &Idempotency,
) -> Result<Receipt, ConsumerError> {
    async fn on_payment(
        #[allow(unused_variables)]
        source: &str,
        #[allow(unused_variables)]
        payment: &Payment,
        op: &mut Operation,
        #[allow(unused_variables)]
        idempotency: &Idempotency,
    ) -> Result<Receipt, ConsumerError> {
        op.step("book", async |key| book(key, payment).await).await
    }
    #[allow(unused_variables)]
    let (scope, key) = {
        let source = &arg0;
        let payment = &arg1;
        (
            ::idem_runtime::attribute::scope(&source),
            ::idem_runtime::attribute::key(&payment.id),
        )
    };
    ::idem_runtime::attribute::returned(
        ::idem_runtime::__private::Call::function(arg2)
            .handler(
                ::core::concat!(::core::module_path!(), "::on_payment"),
                ::core::time::Duration::from_secs(604_800),
            )
            .scope(scope)
            .key(key)
            .lease(::core::time::Duration::from_secs(60))
            .call_operation(async move |op: &mut ::idem_runtime::Operation| {
                ::idem_runtime::attribute::result(on_payment(arg0, arg1, op, arg2).await)
            })
            .await,
    )
}
