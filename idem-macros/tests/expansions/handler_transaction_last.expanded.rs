async fn create_order(
    call: ::idem_runtime::attribute::IdempotencyFromState,
    arg0: Tenant,
    ::idem_runtime::attribute::WithFingerprint {
        value: arg1,
        digest,
    }: ::idem_runtime::attribute::WithFingerprint<User>,
) -> ::idem_runtime::__private::Response {
    async fn create_order(
        #[allow(unused_variables)]
        tenant: Tenant,
        #[allow(unused_variables)]
        user: User,
        tx: &mut Tx,
    ) -> StatusCode {
        save(tx).await
    }
    const _: fn() = || {
        use ::idem_runtime::attribute::Unknown as _;
        let _ = |value: Tenant| {
            ::idem_runtime::attribute::Value::of(&value).holds_no_pool();
        };
        let _ = |value: User| {
            ::idem_runtime::attribute::Value::of(&value).holds_no_pool();
        };
    };
    #[allow(unused_variables)]
    let scope = {
        let tenant = &arg0;
        let user = &arg1;
        ::idem_runtime::attribute::scope(&(&tenant.id, &user.name.as_str()))
    };
    call.handler(
            ::core::concat!(::core::module_path!(), "::create_order"),
            ::core::time::Duration::from_secs(5_400),
        )
        .scope(scope)
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
