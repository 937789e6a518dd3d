::core::compile_error! {
    "`COMMIT` must not stand in the SQL of an idempotent function: the claim, the writes and the response are one transaction; remove it, or use `SAVEPOINT` for a part to undo"
}
async fn create_order(
    call: ::idem_runtime::attribute::IdempotencyFromState,
    ::idem_runtime::attribute::WithFingerprint {
        value: arg0,
        digest,
    }: ::idem_runtime::attribute::WithFingerprint<Tenant>,
) -> ::idem_runtime::__private::Response {
    async fn create_order(
        #[allow(unused_variables)]
        tenant: Tenant,
        tx: &mut Tx,
    ) -> Result<StatusCode, ApiError> {
        sqlx::query("COMMIT").execute(tx).await?;
        Ok(StatusCode::CREATED)
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
