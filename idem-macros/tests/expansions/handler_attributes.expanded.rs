/// Creates an order.
#[must_use]
#[allow(clippy::needless_pass_by_value)]
#[cfg(feature = "orders")]
#[cfg_attr(docsrs, doc(cfg(feature = "orders")))]
pub(crate) async fn create_order(
    call: ::idem_runtime::attribute::IdempotencyFromState<
        {
            let _: fn() = || {
                ::idem_runtime::attribute::state::<AppState>();
            };
            true
        },
    >,
    ::idem_runtime::attribute::WithFingerprint {
        value: arg0,
        digest,
    }: ::idem_runtime::attribute::WithFingerprint<
        Tenant,
        {
            let _: fn() = || {
                ::idem_runtime::attribute::extractor_of_the_request::<
                    Tenant,
                    AppState,
                    _,
                >();
            };
            true
        },
    >,
) -> ::idem_runtime::__private::Response {
    #[tracing::instrument(skip_all)]
    async fn create_order(
        #[allow(unused_variables)]
        tenant: Tenant,
        tx: &mut Tx,
    ) -> StatusCode
    where
        Tenant: Send,
    {
        save(tx).await
    }
    const _: fn() = || {
        use ::idem_runtime::attribute::Unknown as _;
        let _ = |value: Tenant| {
            ::idem_runtime::attribute::Value::of(&value).holds_no_pool();
        };
    };
    #[allow(unused_variables)]
    let scope = {
        let tenant = &arg0;
        ::idem_runtime::attribute::scope(&tenant.id)
    };
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
const _: () = {
    #[allow(dead_code, clippy::unused_async)]
    #[axum::debug_handler]
    async fn create_order(_: Tenant) -> ::idem_runtime::__private::Response {
        ::core::unreachable!()
    }
};
