//! A receiver of a payment provider's events: the signature is checked, and each event counts once, however often and
//! from wherever it is delivered.
//!
//! ```text
//! cargo run --bin webhook                # the tour: redeliveries, a forgery, an event that comes too early
//! cargo run --bin webhook -- --serve     # the service alone, with requests to copy
//! ```
//!
//! The provider sends no `Idempotency-Key`: the event's own number is the key (`key = event.id`). What a user writes is
//! in `service.rs` and `service/`.

mod service;
mod tour;

use std::process::ExitCode;

use idem_examples::{Error, Example, Stage};
use idem_testing::TestDatabase;
use sqlx::PgPool;
use tokio::net::TcpListener;

struct Webhook;

impl Example for Webhook {
    const NAME: &'static str = "webhook";
    const TITLE: &'static str = "a receiver of payment events: signed, and counted once";

    async fn prepare(pool: &PgPool) -> Result<(), Error> {
        service::migrate(pool).await?;
        let invoices = "INSERT INTO invoices (id, amount_cents) VALUES ('inv_1', 4900), ('inv_2', 12000)";
        sqlx::query(invoices).execute(pool).await?;
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
        include_str!("try_it.sh").trim_end().replace("ADDRESS", address).replace("SECRET", service::SECRET)
    }
}

fn main() -> ExitCode {
    idem_examples::run::<Webhook>()
}
