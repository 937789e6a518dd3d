async fn create_order(
    call: ::idem_runtime::__private::Call,
    arg0: Tenant,
    ::idem_runtime::__private::Fingerprinted {
        value: arg1,
        digest,
    }: ::idem_runtime::__private::Fingerprinted<User>,
) -> ::idem_runtime::__private::Response {
    #[allow(clippy::unused_async)]
    async fn create_order(
        #[allow(unused_variables)]
        tenant: Tenant,
        #[allow(unused_variables)]
        user: User,
        tx: &mut Tx,
    ) -> StatusCode {
        StatusCode::CREATED
    }
    #[allow(unused_variables)]
    let scope = {
        let tenant = &arg0;
        let user = &arg1;
        ::idem_runtime::__private::scope(&(&tenant.id, &user.name.as_str()))
    };
    call.handler(
            ::core::concat!(::core::module_path!(), "::create_order"),
            ::core::time::Duration::from_secs(5_400),
        )
        .scope(scope)
        .request(digest)
        .transaction(move |tx| ::idem_runtime::__private::Box::pin(async move {
            ::idem_runtime::__private::IntoResponse::into_response(
                create_order(arg0, arg1, tx).await,
            )
        }))
        .await
}
