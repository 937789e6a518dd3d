//! What an operator sees: how many operations ran, were replayed, refused and released, and how long they took.
//!
//! ```text
//! cargo run --bin metrics                # the tour: a request of every kind, and what /metrics says of it
//! cargo run --bin metrics -- --serve     # the service alone, with requests to copy
//! ```
//!
//! The runtime counts through the crate `metrics` (feature `metrics` of idem-runtime), so any of its exporters will do;
//! here it is the one for Prometheus. What a user writes is in `service.rs`.

mod service;
mod tour;

use std::process::ExitCode;

use idem_examples::{Error, Example, Stage};
use idem_testing::TestDatabase;
use sqlx::PgPool;
use tokio::net::TcpListener;

struct Metrics;

impl Example for Metrics {
    const NAME: &'static str = "metrics";
    const TITLE: &'static str = "a payout service that shows its idempotency at /metrics";

    async fn prepare(pool: &PgPool) -> Result<(), Error> {
        service::migrate(pool).await?;
        sqlx::query("INSERT INTO bank (name, open) VALUES ('house bank', true)").execute(pool).await?;
        Ok(())
    }

    async fn serve(
        pool: PgPool,
        listener: TcpListener,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), Error> {
        service::serve(pool, listener, stop).await
    }

    async fn tour(stage: &mut Stage, database: &TestDatabase) -> Result<(), Error> {
        tour::tour(stage, database).await
    }

    fn try_it(address: &str) -> String {
        include_str!("try_it.sh").trim_end().replace("ADDRESS", address)
    }
}

fn main() -> ExitCode {
    idem_examples::run::<Metrics>()
}
