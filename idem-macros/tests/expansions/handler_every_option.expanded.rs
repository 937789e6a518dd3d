async fn on_event(
    call: once::__private::Call,
    arg0: Tenant,
    arg1: State<PgPool>,
    arg2: Json<Event>,
) -> once::__private::Response {
    #[allow(clippy::unused_async)]
    async fn on_event(
        #[allow(unused_variables)]
        tenant: Tenant,
        State(pool): State<PgPool>,
        tx: &mut Tx,
        #[allow(unused_variables)]
        Json(event): Json<Event>,
    ) -> StatusCode {
        StatusCode::OK
    }
    const _: fn() = || {
        use once::__private::check::Unknown as _;
        once::__private::check::Extractor::<Json<Event>>::last();
        once::__private::check::state::<AppState>();
        once::__private::check::extractor_of_parts::<Tenant, AppState>();
        once::__private::check::part_of_state::<PgPool, AppState>();
    };
    #[allow(unused_variables)]
    let (scope, key, fingerprint) = {
        let tenant = &arg0;
        let Json(event) = &arg2;
        (
            once::__private::scope(&(&tenant.id, &tenant.region)),
            once::__private::key(&event.id),
            once::__private::fingerprint(&(&event.kind, &event.id)),
        )
    };
    call.handler(
            ::core::concat!(::core::module_path!(), "::on_event"),
            ::core::time::Duration::from_secs(86_400),
        )
        .scope(scope)
        .key(key)
        .fingerprint(fingerprint)
        .wait(::core::time::Duration::from_secs(2))
        .replay_failures()
        .lease(::core::time::Duration::from_millis(500))
        .isolation(once::__private::Isolation::Serializable)
        .transaction(move |tx| once::__private::Box::pin(async move {
            once::__private::IntoResponse::into_response(
                on_event(arg0, arg1, tx, arg2).await,
            )
        }))
        .await
}
