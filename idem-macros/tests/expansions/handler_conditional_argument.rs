#[idempotent(scope = tenant.id, ttl = "24h")]
async fn create_order(
    tenant: Tenant,
    #[cfg(feature = "region")] Region(region): Region,
    tx: &mut Tx,
    Json(new): Json<NewOrder>,
) -> StatusCode {
    save(tx).await
}
