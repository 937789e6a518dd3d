/// Creates an order.
#[must_use]
#[allow(clippy::needless_pass_by_value)]
#[cfg(feature = "orders")]
#[cfg_attr(docsrs, doc(cfg(feature = "orders")))]
#[tracing::instrument(skip_all)]
#[axum::debug_handler]
#[idempotent(scope = tenant.id, ttl = "24h", state = AppState)]
pub(crate) async fn create_order(tenant: Tenant, tx: &mut Tx) -> StatusCode
where
    Tenant: Send,
{
    save(tx).await
}
