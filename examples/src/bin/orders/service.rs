//! The service, as one would write it: state, routes, and a life from the first migration to the last answer.

mod account;
mod customer;
mod error;
mod orders;

use axum::Router;
use axum::extract::FromRef;
use axum::routing::{get, post};
use idem_runtime::Idempotency;
use sqlx::PgPool;
use tokio::net::TcpListener;

/// What handlers share. `#[idempotent]` finds its [`Idempotency`] here, through `FromRef`.
#[derive(Clone, FromRef)]
struct AppState {
    pool: PgPool,
    idempotency: Idempotency,
}

fn router(state: AppState) -> Router {
    Router::new()
        .route("/orders", post(orders::create_order))
        .route("/orders/{id}", get(orders::get_order))
        .route("/orders/{id}/cancel", post(orders::cancel_order))
        .route("/deposits", post(account::deposit))
        .route("/account", get(account::get_account))
        .with_state(state)
}

/// The application's tables and the runtime's: each in its own schema, each with its own history.
pub(crate) async fn migrate(pool: &PgPool) -> Result<(), idem_examples::Error> {
    sqlx::migrate!("src/bin/orders/migrations").run(pool).await?;
    Idempotency::new(pool.clone()).migrate().await?;
    Ok(())
}

/// Serves until `stop` ends, and then until every operation in flight has its answer.
pub(crate) async fn serve(
    pool: PgPool,
    listener: TcpListener,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(), idem_examples::Error> {
    migrate(&pool).await?;
    let idempotency = Idempotency::new(pool.clone());
    let sweeper = idempotency.sweeper();
    let state = AppState { pool: pool.clone(), idempotency: idempotency.clone() };

    axum::serve(listener, router(state)).with_graceful_shutdown(stop).await?;

    // A handler whose client hung up may still be at work: it is waited for too.
    let unfinished = idempotency.shutdown().await;
    let swept = sweeper.stop().await;
    pool.close().await;
    tracing::info!(unfinished, swept, "stopped");
    Ok(())
}
