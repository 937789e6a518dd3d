async fn create_order(
    call: ::idem_runtime::attribute::IdempotencyFromState,
    arg0: State<AppState>,
    ::idem_runtime::attribute::Checked(
        arg1,
    ): ::idem_runtime::attribute::Checked<
        Path<(String, i64)>,
        {
            let _: fn() = || {
                use ::idem_runtime::attribute::Unknown as _;
                ::idem_runtime::attribute::Extractor::<
                    Path<(String, i64)>,
                >::before_the_last();
            };
            true
        },
    >,
    arg2: Tenant,
    ::idem_runtime::attribute::WithFingerprint {
        value: arg3,
        digest,
    }: ::idem_runtime::attribute::WithFingerprint<
        Bytes,
        {
            let _: fn() = || {
                use ::idem_runtime::attribute::Unknown as _;
                ::idem_runtime::attribute::Extractor::<Bytes>::last();
            };
            true
        },
    >,
) -> ::idem_runtime::__private::Response {
    async fn create_order(
        State(AppState { ref mailer, .. }): State<AppState>,
        #[allow(unused_variables)]
        Path((shop, mut number)): Path<(String, i64)>,
        _: Tenant,
        tx: &mut Tx,
        mut body: Bytes,
    ) -> impl IntoResponse {
        number += 1;
        save(tx).await
    }
    const _: fn() = || {
        use ::idem_runtime::attribute::Unknown as _;
        #[allow(unused)]
        let _ = |State(AppState { ref mailer, .. }): State<AppState>| {
            ::idem_runtime::attribute::Value::of(&mailer).is_no_pool();
            ::idem_runtime::attribute::Value::of(&mailer).holds_no_pool();
        };
        let _ = |value: Tenant| {
            ::idem_runtime::attribute::Value::of(&value).holds_no_pool();
        };
    };
    #[allow(unused_variables)]
    let scope = {
        let Path((shop, number)) = &arg1;
        ::idem_runtime::attribute::scope(&shop)
    };
    call.handler(
            ::core::concat!(::core::module_path!(), "::create_order"),
            ::core::time::Duration::from_secs(604_800),
        )
        .scope(scope)
        .request(digest)
        .transaction(move |tx| ::idem_runtime::__private::Box::pin(async move {
            let returned = create_order(arg0, arg1, arg2, tx, arg3).await;
            let conflict = ::idem_runtime::lost_conflict!(returned);
            ::idem_runtime::attribute::answer(
                ::idem_runtime::__private::IntoResponse::into_response(returned),
                conflict,
            )
        }))
        .await
}
