async fn create_order(
    call: ::idem_runtime::attribute::IdempotencyFromState,
    arg0: Tenant,
    ::idem_runtime::attribute::WithFingerprint {
        value: arg1,
        digest,
    }: ::idem_runtime::attribute::WithFingerprint<Region>,
) -> ::idem_runtime::__private::Response {
    async fn create_order(
        #[allow(unused_variables)]
        tenant: Tenant,
        #[allow(unused_variables)]
        Region(region): Region,
        tx: &mut Tx,
    ) -> StatusCode {
        save(tx).await
    }
    const _: fn() = || {
        use ::idem_runtime::attribute::Unknown as _;
        let _ = |value: Tenant| {
            ::idem_runtime::attribute::Value::of(&value).holds_no_pool();
        };
        let _ = |value: Region| {
            ::idem_runtime::attribute::Value::of(&value).holds_no_pool();
        };
    };
    #[allow(unused_variables)]
    let scope = {
        let tenant = &arg0;
        let Region(region) = &arg1;
        ::idem_runtime::attribute::scope(&format!("{}:{region}", tenant.id))
    };
    call.handler(
            ::core::concat!(::core::module_path!(), "::create_order"),
            ::core::time::Duration::from_secs(86_400),
        )
        .scope(scope)
        .optional_key()
        .request(digest)
        .transaction(move |tx| ::idem_runtime::__private::Box::pin(async move {
            let returned = create_order(arg0, arg1, tx).await;
            let conflict = ::idem_runtime::lost_conflict!(returned);
            ::idem_runtime::attribute::answer(
                ::idem_runtime::__private::IntoResponse::into_response(returned),
                conflict,
            )
        }))
        .await
}
