#[idempotent(scope = tenant.id, ttl = "24h")]
async fn create_order(tenant: Tenant, tx: &mut Tx) -> Result<StatusCode, ApiError> {
    sqlx::query("COMMIT").execute(tx).await?;
    Ok(StatusCode::CREATED)
}
