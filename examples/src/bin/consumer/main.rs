//! A consumer of Redis streams that books each payment once, however often its message is delivered.
//!
//! ```text
//! cargo run --bin consumer                 # the tour: redeliveries, SIGKILL between effect and acknowledgement, a storm, poison
//! cargo run --bin consumer -- --serve      # the consumer alone, with commands to copy
//! ```
//!
//! What a user writes is in `service/`; begin with `service/payments.rs`. `broker.rs` starts Redis, which must be installed.
//! The tour in `tour.rs` exits 0 only if every promise held.

mod broker;
mod service;
mod tour;

use std::process::ExitCode;

use idem_examples::{Error, Example, Server, Stage};
use idem_testing::TestDatabase;
use service::Settings;
use sqlx::PgPool;
use tokio::net::TcpListener;

struct Consumer;

impl Example for Consumer {
    const NAME: &'static str = "consumer";
    const TITLE: &'static str = "messages from Redis streams, delivered at least once and booked exactly once";

    async fn prepare(pool: &PgPool) -> Result<(), Error> {
        prepare(pool).await
    }

    async fn serve(
        pool: PgPool,
        listener: TcpListener,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), Error> {
        if let Some(settings) = Settings::from_environment() {
            return service::serve(pool, settings, listener, stop).await;
        }
        let redis = Server::companion(broker::REDIS).await?;
        let port = redis.address().rsplit(':').next().unwrap_or_default();
        println!("Redis on {}\n\n# publish a payment; again, as often as you like: it is booked once", redis.address());
        println!("redis-cli -p {port} XADD payments '*' id pay-1 account ada amount_cents 500\n");
        println!("# nothing is waiting for an acknowledgement");
        println!("redis-cli -p {port} XPENDING payments bookkeeping\n");
        service::serve(pool, Settings::new(redis.address()), listener, stop).await
    }

    async fn tour(stage: &mut Stage, database: &TestDatabase) -> Result<(), Error> {
        tour::tour(stage, database).await
    }

    fn try_it(address: &str) -> String {
        format!("# the balance\ncurl http://{address}/accounts/ada")
    }

    async fn accompany(
        name: &str,
        listener: TcpListener,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), Error> {
        match name {
            broker::REDIS => broker::serve(listener, stop).await,
            _ => Err(format!("`{name}` is no process of this example").into()),
        }
    }
}

/// The tables and the demo data.
async fn prepare(pool: &PgPool) -> Result<(), Error> {
    service::migrate(pool).await?;
    sqlx::raw_sql(include_str!("demo.sql")).execute(pool).await?;
    Ok(())
}

fn main() -> ExitCode {
    if let Err(error) = broker::check_installed() {
        eprintln!("{error}");
        return ExitCode::FAILURE;
    }
    idem_examples::run::<Consumer>()
}
