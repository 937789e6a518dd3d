//! Multipart uploads that a flaky connection may send as often as it needs to.
//!
//! ```text
//! cargo run --bin uploads                # the tour: an upload retried, changed, cut off and too large
//! cargo run --bin uploads -- --serve     # the service alone, with requests to copy
//! ```
//!
//! A client makes a new multipart boundary for every attempt, so the attempts differ on the wire; they are one request
//! all the same, because their parts are. What a user writes is in `service.rs`.

mod service;
mod tour;

use std::process::ExitCode;

use idem_examples::{Error, Example, Stage};
use idem_testing::TestDatabase;
use sqlx::PgPool;
use tokio::net::TcpListener;

struct Uploads;

impl Example for Uploads {
    const NAME: &'static str = "uploads";
    const TITLE: &'static str = "multipart uploads, each stored once with its digest";

    async fn prepare(pool: &PgPool) -> Result<(), Error> {
        service::migrate(pool).await?;
        sqlx::query("INSERT INTO users (token_digest) VALUES (sha256('ada-token'))").execute(pool).await?;
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
    idem_examples::run::<Uploads>()
}
