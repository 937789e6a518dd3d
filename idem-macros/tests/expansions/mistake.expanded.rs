::core::compile_error! {
    "`tennant` is no argument of the function; use `tenant`"
}
async fn create_order(
    call: ::idem_runtime::attribute::IdempotencyFromState,
    ::idem_runtime::attribute::WithFingerprint {
        value: arg0,
        digest,
    }: ::idem_runtime::attribute::WithFingerprint<Tenant>,
) -> ::idem_runtime::__private::Response {
    async fn create_order(tenant: Tenant, tx: &mut Tx) -> StatusCode {
        save(tx).await
    }
    const _: fn() = || {
        use ::idem_runtime::attribute::Unknown as _;
        let _ = |value: Tenant| {
            ::idem_runtime::attribute::Value::of(&value).holds_no_pool();
        };
    };
    let scope = ::idem_runtime::attribute::global_scope();
    call.handler(
            ::core::concat!(::core::module_path!(), "::create_order"),
            ::core::time::Duration::from_secs(86_400),
        )
        .scope(scope)
        .request(digest)
        .transaction(move |tx| ::idem_runtime::__private::Box::pin(async move {
            let returned = create_order(arg0, tx).await;
            let conflict = ::idem_runtime::lost_conflict!(returned);
            ::idem_runtime::attribute::answer(
                ::idem_runtime::__private::IntoResponse::into_response(returned),
                conflict,
            )
        }))
        .await
}
