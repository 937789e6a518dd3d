//! The service, as one would write it: state, routes, and a life from the first migration to the last answer.

mod admin;
mod checkout;
mod customer;
mod error;
mod mail;
mod orders;
mod provider;
mod settings;
mod status;
mod unprotected;

use axum::Router;
use axum::extract::FromRef;
use axum::routing::{get, post};
use idem_runtime::Idempotency;
use sqlx::PgPool;
use tokio::net::TcpListener;

use mail::MailService;
use provider::Provider;
pub(crate) use settings::Settings;

/// What handlers share. `#[idempotent]` finds its [`Idempotency`] here, through `FromRef`.
#[derive(Clone, FromRef)]
struct AppState {
    pool: PgPool,
    idempotency: Idempotency,
    provider: Provider,
}

fn router(state: AppState) -> Router {
    Router::new()
        .route("/checkout", post(checkout::checkout))
        .route("/checkout/keyless", post(checkout::checkout_without_keys))
        .route("/checkout/unprotected", post(unprotected::checkout))
        .route("/orders/{id}", get(orders::get_order))
        .route("/orders/status/{key}", get(status::get_status))
        .route("/admin/failed", get(admin::list_failed))
        .route("/admin/failed/retry", post(admin::retry_failed))
        .with_state(state)
}

/// The application's tables and the runtime's: each in its own schema, each with its own history.
pub(crate) async fn migrate(pool: &PgPool) -> Result<(), idem_examples::Error> {
    sqlx::migrate!("src/bin/checkout/migrations").run(pool).await?;
    Idempotency::new(pool.clone()).migrate().await?;
    Ok(())
}

/// The service's routes over a database, without its background tasks.
pub(crate) fn application(pool: PgPool, settings: &Settings) -> Result<(Router, Idempotency), idem_examples::Error> {
    let idempotency = Idempotency::builder(pool.clone())
        .lease(settings.patience)
        .delivery_timeout(settings.patience)
        .recovery_attempts(settings.recovery_attempts)
        .build()?;
    let provider = Provider::new(&settings.provider)?;
    let state = AppState { pool, idempotency: idempotency.clone(), provider };
    Ok((router(state), idempotency))
}

/// Serves until `stop` ends, and then until every operation in flight has its answer.
pub(crate) async fn serve(
    pool: PgPool,
    settings: Settings,
    listener: TcpListener,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(), idem_examples::Error> {
    migrate(&pool).await?;
    let (router, idempotency) = application(pool.clone(), &settings)?;
    let sweeper = idempotency.sweeper();
    // Finishes what its client has given up.
    let completer = settings.completer.then(|| idempotency.completer(router.clone()));
    // Delivers what was committed to the outbox.
    let mail = MailService::new(&settings.mail)?;
    let relay = idempotency.relay().on("receipt", move |message| {
        let mail = mail.clone();
        async move { mail.deliver(message).await }
    });
    let relay = relay.start()?;

    axum::serve(listener, router).with_graceful_shutdown(stop).await?;

    if let Some(completer) = completer {
        completer.stop().await;
    }
    // A handler whose client hung up may still be at work: it is waited for too.
    idempotency.shutdown().await;
    relay.stop().await;
    sweeper.stop().await;
    pool.close().await;
    Ok(())
}
