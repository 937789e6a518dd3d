/// Creates an order.
pub async fn create_order(
    call: ::idem_runtime::attribute::IdempotencyFromState,
    arg0: Tenant,
    ::idem_runtime::attribute::WithFingerprint {
        value: arg1,
        digest,
    }: ::idem_runtime::attribute::WithFingerprint<
        Json<NewOrder>,
        {
            let _: fn() = || {
                use ::idem_runtime::attribute::Unknown as _;
                ::idem_runtime::attribute::Extractor::<Json<NewOrder>>::last();
            };
            true
        },
    >,
) -> ::idem_runtime::__private::Response {
    async fn create_order(
        #[allow(unused_variables)]
        tenant: Tenant,
        tx: &mut Tx,
        Json(new): Json<NewOrder>,
    ) -> Result<(StatusCode, Json<Order>), ApiError> {
        let order = sqlx::query_as("INSERT INTO orders DEFAULT VALUES RETURNING *")
            .fetch_one(&mut *tx)
            .await?;
        Ok((StatusCode::CREATED, Json(order)))
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
            let returned = create_order(arg0, tx, arg1).await;
            let conflict = ::idem_runtime::lost_conflict!(returned);
            ::idem_runtime::attribute::answer(
                ::idem_runtime::__private::IntoResponse::into_response(returned),
                conflict,
            )
        }))
        .await
}
