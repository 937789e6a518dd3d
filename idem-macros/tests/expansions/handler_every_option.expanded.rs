async fn on_event(
    call: once::attribute::IdempotencyFromState<
        {
            let _: fn() = || {
                once::attribute::state::<AppState>();
            };
            true
        },
    >,
    once::attribute::Checked(
        arg0,
    ): once::attribute::Checked<
        Tenant,
        {
            let _: fn() = || {
                once::attribute::extractor_of_parts::<Tenant, AppState>();
            };
            true
        },
    >,
    once::attribute::Checked(
        arg1,
    ): once::attribute::Checked<
        State<PgPool>,
        {
            let _: fn() = || {
                once::attribute::part_of_state::<PgPool, AppState>();
            };
            true
        },
    >,
    once::attribute::CheckedLast(
        arg2,
    ): once::attribute::CheckedLast<
        Json<Event>,
        {
            let _: fn() = || {
                use once::attribute::Unknown as _;
                once::attribute::Extractor::<Json<Event>>::last();
            };
            true
        },
    >,
) -> once::__private::Response {
    async fn on_event(
        #[allow(unused_variables)]
        tenant: Tenant,
        State(pool): State<PgPool>,
        tx: &mut Tx,
        #[allow(unused_variables)]
        Json(event): Json<Event>,
    ) -> StatusCode {
        save(tx).await
    }
    #[allow(unused_variables)]
    let (scope, key, fingerprint) = {
        let tenant = &arg0;
        let Json(event) = &arg2;
        (
            once::attribute::scope(&(&tenant.id, &tenant.region)),
            once::attribute::key(&event.id),
            once::attribute::fingerprint(&(&event.kind, &event.id)),
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
        .lease(::core::time::Duration::from_secs(90))
        .isolation(once::__private::Isolation::Serializable)
        .transaction(move |tx| once::__private::Box::pin(async move {
            let returned = on_event(arg0, arg1, tx, arg2).await;
            let conflict = once::lost_conflict!(returned);
            once::attribute::answer(
                once::__private::IntoResponse::into_response(returned),
                conflict,
            )
        }))
        .await
}
