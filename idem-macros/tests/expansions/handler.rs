/// Creates an order.
#[idempotent(scope = tenant.id, ttl = "24h")]
pub async fn create_order(
    tenant: Tenant,
    tx: &mut Tx,
    Json(new): Json<NewOrder>,
) -> Result<(StatusCode, Json<Order>), ApiError> {
    let order = sqlx::query_as("INSERT INTO orders DEFAULT VALUES RETURNING *").fetch_one(&mut *tx).await?;
    Ok((StatusCode::CREATED, Json(order)))
}
