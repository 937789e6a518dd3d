//! rustango keeps responses in its cache, here the one in Postgres.

use std::sync::Arc;

use axum::Router;
use idem_benches::Result;
use peers_sqlx::PgPool;
use rustango::cache::{BoxedCache, DatabaseCache};
use rustango::idempotency::{IdempotencyLayer, IdempotencyRouterExt};

pub(super) async fn wrap(routes: Router, pool: PgPool) -> Result<Router> {
    let cache = DatabaseCache::new(rustango::sql::Pool::from(pool), "rustango_cache");
    cache.ensure_table().await.map_err(|error| format!("{error:?}"))?;
    let cache: BoxedCache = Arc::new(cache);
    Ok(routes.idempotency(IdempotencyLayer::new(cache)))
}
