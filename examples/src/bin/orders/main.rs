//! A small order service whose handlers are safe to retry, attacked before your eyes.
//!
//! ```text
//! cargo run --bin orders                 # the tour: duplicates, mismatches, refusals, SIGKILL
//! cargo run --bin orders -- --serve      # the service alone, with requests to copy
//! ```
//!
//! What a user writes is in `service.rs` and `service/`; begin with `service/orders.rs`. The tour in `tour.rs` starts
//! the service in processes of its own over a throwaway Postgres, and exits 0 only if every promise held.

mod service;
mod tour;

use std::process::ExitCode;

use idem_examples::{Error, Example, Stage};
use idem_testing::TestDatabase;
use sqlx::PgPool;
use tokio::net::TcpListener;

struct Orders;

impl Example for Orders {
    const NAME: &'static str = "orders";
    const TITLE: &'static str = "an order service on axum and Postgres that is safe to retry";

    async fn prepare(pool: &PgPool) -> Result<(), Error> {
        service::migrate(pool).await?;
        sqlx::raw_sql(include_str!("demo.sql")).execute(pool).await?;
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
    idem_examples::run::<Orders>()
}
