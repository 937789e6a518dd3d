#[idempotent(scope = tenant.id, ttl = "24h")]
async fn create_order(
    tenant: Tenant,
    tx: &mut Tx,
    #[cfg(feature = "json")] Json(new): Json<NewOrder>,
) -> StatusCode {
    save(tx).await
}
