#[idempotent(scope = (tenant.id, user.name.as_str()), ttl = "1h 30m")]
async fn create_order(tenant: Tenant, user: User, tx: &mut Tx) -> StatusCode {
    save(tx).await
}
