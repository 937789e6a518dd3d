async fn tick(
    call: ::idem_runtime::attribute::IdempotencyFromState,
    ::idem_runtime::attribute::WithFingerprint {
        value: (),
        digest,
    }: ::idem_runtime::attribute::WithFingerprint<()>,
) -> ::idem_runtime::__private::Response {
    async fn tick(tx: &mut Tx) {
        sqlx::query("UPDATE clock SET ticks = ticks + 1")
            .execute(&mut *tx)
            .await
            .unwrap();
    }
    let scope = ::idem_runtime::attribute::global_scope();
    call.handler(
            ::core::concat!(::core::module_path!(), "::tick"),
            ::core::time::Duration::from_secs(604_800),
        )
        .scope(scope)
        .request(digest)
        .transaction(move |tx| ::idem_runtime::__private::Box::pin(async move {
            let returned = tick(tx).await;
            let conflict = ::idem_runtime::lost_conflict!(returned);
            ::idem_runtime::attribute::answer(
                ::idem_runtime::__private::IntoResponse::into_response(returned),
                conflict,
            )
        }))
        .await
}
