async fn create_order(
    call: ::idem_runtime::__private::Call,
    arg0: State<AppState>,
    arg1: Path<(String, i64)>,
    arg2: Tenant,
    ::idem_runtime::__private::Fingerprinted {
        value: arg3,
        digest,
    }: ::idem_runtime::__private::Fingerprinted<Bytes>,
) -> ::idem_runtime::__private::Response {
    #[allow(clippy::unused_async)]
    async fn create_order(
        State(AppState { ref mailer, .. }): State<AppState>,
        #[allow(unused_variables)]
        Path((shop, mut number)): Path<(String, i64)>,
        _: Tenant,
        tx: &mut Tx,
        mut body: Bytes,
    ) -> impl IntoResponse {
        number += 1;
        StatusCode::CREATED
    }
    const _: fn() = || {
        use ::idem_runtime::__private::check::Unknown as _;
        ::idem_runtime::__private::check::Extractor::<
            State<AppState>,
        >::before_the_last();
        ::idem_runtime::__private::check::Extractor::<
            Path<(String, i64)>,
        >::before_the_last();
        ::idem_runtime::__private::check::Extractor::<Bytes>::last();
    };
    #[allow(unused_variables)]
    let scope = {
        let Path((shop, number)) = &arg1;
        ::idem_runtime::__private::scope(&shop)
    };
    call.handler(
            ::core::concat!(::core::module_path!(), "::create_order"),
            ::core::time::Duration::from_secs(604_800),
        )
        .scope(scope)
        .request(digest)
        .transaction(move |tx| ::idem_runtime::__private::Box::pin(async move {
            ::idem_runtime::__private::IntoResponse::into_response(
                create_order(arg0, arg1, arg2, tx, arg3).await,
            )
        }))
        .await
}
