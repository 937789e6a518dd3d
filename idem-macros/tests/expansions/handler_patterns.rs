#[idempotent(scope = shop, ttl = "7d")]
async fn create_order(
    State(AppState { ref mailer, .. }): State<AppState>,
    Path((shop, mut number)): Path<(String, i64)>,
    _: Tenant,
    tx: &mut Tx,
    mut body: Bytes,
) -> impl IntoResponse {
    number += 1;
    save(tx).await
}
