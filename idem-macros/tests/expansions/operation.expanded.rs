async fn checkout(
    call: ::idem_runtime::attribute::IdempotencyFromState,
    arg0: User,
    arg1: State<Provider>,
    ::idem_runtime::attribute::WithFingerprint {
        value: arg2,
        digest,
    }: ::idem_runtime::attribute::WithFingerprint<
        Json<Cart>,
        {
            let _: fn() = || {
                use ::idem_runtime::attribute::Unknown as _;
                ::idem_runtime::attribute::Extractor::<Json<Cart>>::last();
            };
            true
        },
    >,
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
        use ::idem_runtime::attribute::Unknown as _;
        let _ = |value: User| {
            ::idem_runtime::attribute::Value::of(&value).holds_no_pool();
        };
        let _ = |value: State<Provider>| {
            ::idem_runtime::attribute::Value::of(&value).holds_no_pool();
            ::idem_runtime::attribute::Value::of(&value).holds_no_wrapped_pool();
            ::idem_runtime::attribute::Value::of(&value).holds_no_deeply_wrapped_pool();
        };
    };
    #[allow(unused_variables)]
    let scope = {
        let user = &arg0;
        ::idem_runtime::attribute::scope(&user.id)
    };
    call.handler(
            ::core::concat!(::core::module_path!(), "::checkout"),
            ::core::time::Duration::from_secs(86_400),
        )
        .scope(scope)
        .request(digest)
        .operation(move |op| ::idem_runtime::__private::Box::pin(async move {
            let returned = checkout(arg0, op, arg1, arg2).await;
            let conflict = ::idem_runtime::lost_conflict!(returned);
            ::idem_runtime::attribute::answer(
                ::idem_runtime::__private::IntoResponse::into_response(returned),
                conflict,
            )
        }))
        .await
}
