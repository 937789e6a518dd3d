/// Creates an order.
pub async fn create_order(
    call: ::idem_runtime::__private::Call,
    arg0: Tenant,
    ::idem_runtime::__private::Fingerprinted {
        value: arg1,
        digest,
    }: ::idem_runtime::__private::Fingerprinted<Json<NewOrder>>,
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
                create_order(arg0, tx, arg1).await,
            )
        }))
        .await
}
