#[idempotent(scope = tennant.id, ttl = "24h")]
async fn create_order(tenant: Tenant, tx: &mut Tx) -> StatusCode {
    save(tx).await
}
