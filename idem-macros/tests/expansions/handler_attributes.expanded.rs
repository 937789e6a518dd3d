/// Creates an order.
#[must_use]
#[allow(clippy::needless_pass_by_value)]
#[cfg(feature = "orders")]
#[cfg_attr(docsrs, doc(cfg(feature = "orders")))]
#[axum::debug_handler(state = AppState)]
pub(crate) async fn create_order(
    call: ::idem_runtime::__private::Call,
    ::idem_runtime::__private::Fingerprinted {
        value: arg0,
        digest,
    }: ::idem_runtime::__private::Fingerprinted<Tenant>,
) -> ::idem_runtime::__private::Response {
    #[allow(clippy::unused_async)]
    #[tracing::instrument(skip_all)]
    async fn create_order(
        #[allow(unused_variables)]
        tenant: Tenant,
        tx: &mut Tx,
    ) -> StatusCode
    where
        Tenant: Send,
    {
        StatusCode::CREATED
    }
    const _: fn() = || {
        ::idem_runtime::__private::check::state::<AppState>();
        ::idem_runtime::__private::check::extractor_of_the_request::<
            Tenant,
            AppState,
            _,
        >();
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
                create_order(arg0, tx).await,
            )
        }))
        .await
}
