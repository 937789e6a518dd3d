//! The consumer, as one would write it: its inbox, its loop, and a page to look at the balances.

mod accounts;
mod consumer;
mod payments;
mod receipts;
mod settings;

use std::time::Duration;

use axum::Router;
use axum::routing::get;
use idem_runtime::Idempotency;
use sqlx::PgPool;
use tokio::net::TcpListener;
use tokio::sync::watch;

use consumer::Consumer;
pub(crate) use consumer::{DEAD, GROUP, STREAM};
pub(crate) use receipts::{ARCHIVE, RECEIPTS};
pub(crate) use settings::Settings;

/// How often the delivery of a message is begun before it is a dead letter.
pub(crate) const DELIVERIES: u32 = 3;

/// The application's tables and the runtime's: each in its own schema, each with its own history.
pub(crate) async fn migrate(pool: &PgPool) -> Result<(), idem_examples::Error> {
    sqlx::migrate!("src/bin/consumer/migrations").run(pool).await?;
    Idempotency::new(pool.clone()).migrate().await?;
    Ok(())
}

/// Consumes until `stop` ends, and then until the message at hand is done.
pub(crate) async fn serve(
    pool: PgPool,
    settings: Settings,
    listener: TcpListener,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(), idem_examples::Error> {
    migrate(&pool).await?;
    let builder = Idempotency::builder(pool.clone()).delivery_attempts(DELIVERIES);
    let idempotency = builder.relay_lease(Duration::from_secs(1)).build()?;
    // On a connection of its own: the consumer's waits for payments.
    let relay = receipts::start(&idempotency, consumer::connect(&settings).await?, &settings)?;
    let sweeper = idempotency.sweeper();
    let (stopping, mut stopped) = watch::channel(false);
    let mut consumer = Consumer::connect(idempotency, pool.clone(), &settings).await?;
    let consuming = tokio::spawn({
        let stopped = stopped.clone();
        async move { consumer.run(stopped).await }
    });
    tokio::spawn(async move {
        stop.await;
        stopping.send_replace(true);
    });
    let router = Router::new().route("/accounts/{name}", get(accounts::get_account)).with_state(pool.clone());
    let shutdown = async move { _ = stopped.wait_for(|stopped| *stopped).await };
    axum::serve(listener, router).with_graceful_shutdown(shutdown).await?;
    consuming.await?;
    relay.stop().await;
    sweeper.stop().await;
    pool.close().await;
    Ok(())
}
