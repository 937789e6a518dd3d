//! cratestack reserves the key in one transaction and completes it in another.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use cratestack_axum::idempotency::IdempotencyLayer;
use cratestack_sqlx::SqlxIdempotencyStore;
use idem_benches::Result;
use peers_sqlx::PgPool;

const TTL: Duration = Duration::from_secs(86_400);

pub(super) async fn wrap(routes: Router, pool: PgPool) -> Result<Router> {
    let store = SqlxIdempotencyStore::new(pool);
    store.ensure_schema().await.map_err(|error| format!("{error:?}"))?;
    Ok(routes.layer(IdempotencyLayer::new(Arc::new(store), TTL)))
}
