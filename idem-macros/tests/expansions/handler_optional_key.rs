#[idempotent(scope = format!("{}:{region}", tenant.id), ttl = "24h", key = optional)]
async fn create_order(tenant: Tenant, Region(region): Region, tx: &mut Tx) -> StatusCode {
    save(tx).await
}
