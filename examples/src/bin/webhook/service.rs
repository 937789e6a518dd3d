//! The service, as one would write it.

mod payments;
pub(crate) mod signature;

use std::sync::Arc;

use axum::Router;
use axum::extract::FromRef;
use axum::routing::post;
use idem_runtime::Idempotency;
use sqlx::PgPool;
use tokio::net::TcpListener;

/// What the provider and we share. Yours comes from the environment, and never into a repository.
pub(crate) const SECRET: &str = "whsec_example";

#[derive(Clone, FromRef)]
struct AppState {
    idempotency: Idempotency,
    secret: signature::Secret,
}

/// The application's tables and the runtime's.
pub(crate) async fn migrate(pool: &PgPool) -> Result<(), idem_examples::Error> {
    sqlx::migrate!("src/bin/webhook/migrations").run(pool).await?;
    Idempotency::new(pool.clone()).migrate().await?;
    Ok(())
}

/// Serves until `stop` ends, and then until every event in flight has its answer.
pub(crate) async fn serve(
    pool: PgPool,
    listener: TcpListener,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(), idem_examples::Error> {
    migrate(&pool).await?;
    let idempotency = Idempotency::new(pool.clone());
    let sweeper = idempotency.sweeper();
    let secret = signature::Secret(Arc::from(SECRET.as_bytes()));
    let state = AppState { idempotency: idempotency.clone(), secret };
    let routes = Router::new().route("/webhooks/payments", post(payments::receive)).with_state(state);

    axum::serve(listener, routes).with_graceful_shutdown(stop).await?;

    idempotency.shutdown().await;
    sweeper.stop().await;
    pool.close().await;
    Ok(())
}
