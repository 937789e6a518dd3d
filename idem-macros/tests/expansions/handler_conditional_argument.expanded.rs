async fn create_order(
    call: ::idem_runtime::__private::Call,
    arg0: Tenant,
    #[cfg(feature = "region")]
    arg1: Region,
    ::idem_runtime::__private::Fingerprinted {
        value: arg2,
        digest,
    }: ::idem_runtime::__private::Fingerprinted<Json<NewOrder>>,
) -> ::idem_runtime::__private::Response {
    #[allow(clippy::unused_async)]
    async fn create_order(
        #[allow(unused_variables)]
        tenant: Tenant,
        #[cfg(feature = "region")]
        Region(region): Region,
        tx: &mut Tx,
        Json(new): Json<NewOrder>,
    ) -> StatusCode {
        StatusCode::CREATED
    }
    const _: fn() = || {
        use ::idem_runtime::__private::check::Unknown as _;
        ::idem_runtime::__private::check::Extractor::<Json<NewOrder>>::last();
    };
    #[allow(unused_variables)]
    let scope = {
        let tenant = &arg0;
        ::idem_runtime::__private::scope(&tenant.id)
    };
    call.handler(
            ::core::concat!(::core::module_path!(), "::create_order"),
            ::core::time::Duration::from_secs(86_400),
        )
        .scope(scope)
        .request(digest)
        .transaction(move |tx| ::idem_runtime::__private::Box::pin(async move {
            ::idem_runtime::__private::IntoResponse::into_response(
                create_order(arg0, #[cfg(feature = "region")] arg1, tx, arg2).await,
            )
        }))
        .await
}
