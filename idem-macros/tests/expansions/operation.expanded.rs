async fn checkout(
    call: ::idem_runtime::__private::Call,
    arg0: User,
    arg1: State<Provider>,
    ::idem_runtime::__private::Fingerprinted {
        value: arg2,
        digest,
    }: ::idem_runtime::__private::Fingerprinted<Json<Cart>>,
) -> ::idem_runtime::__private::Response {
    async fn checkout(
        #[allow(unused_variables)]
        user: User,
        op: &mut Operation,
        State(psp): State<Provider>,
        Json(cart): Json<Cart>,
    ) -> Result<Json<Receipt>, ApiError> {
        let order: i64 = op
            .transaction("create order", async |tx| insert_order(tx, &cart).await)
            .await?;
        let charge: Charge = op
            .step("charge", async |key| psp.charge(key, cart.total).await)
            .await?;
        op.transaction("mark paid", async |tx| mark_paid(tx, order, &charge).await)
            .await?;
        Ok(Json(Receipt { order, charge }))
    }
    const _: fn() = || {
        use ::idem_runtime::__private::check::Unknown as _;
        ::idem_runtime::__private::check::Extractor::<
            State<Provider>,
        >::before_the_last();
        ::idem_runtime::__private::check::Extractor::<Json<Cart>>::last();
    };
    #[allow(unused_variables)]
    let scope = {
        let user = &arg0;
        ::idem_runtime::__private::scope(&user.id)
    };
    call.handler(
            ::core::concat!(::core::module_path!(), "::checkout"),
            ::core::time::Duration::from_secs(86_400),
        )
        .scope(scope)
        .request(digest)
        .operation(move |op| ::idem_runtime::__private::Box::pin(async move {
            ::idem_runtime::__private::IntoResponse::into_response(
                checkout(arg0, op, arg1, arg2).await,
            )
        }))
        .await
}
