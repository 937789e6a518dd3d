#[idempotent(scope = user.id, ttl = "24h")]
async fn checkout(
    user: User,
    op: &mut Operation,
    State(psp): State<Provider>,
    Json(cart): Json<Cart>,
) -> Result<Json<Receipt>, ApiError> {
    let order: i64 = op.transaction("create order", async |tx| insert_order(tx, &cart).await).await?;
    let charge: Charge = op.step("charge", async |key| psp.charge(key, cart.total).await).await?;
    op.transaction("mark paid", async |tx| mark_paid(tx, order, &charge).await).await?;
    Ok(Json(Receipt { order, charge }))
}
