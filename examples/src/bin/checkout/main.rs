//! A checkout over three systems, killed at every step before your eyes: stock in Postgres, money at a payment provider,
//! an e-mail through the outbox.
//!
//! ```text
//! cargo run --bin checkout                 # the tour: SIGKILL at every step, counted at the provider
//! cargo run --bin checkout -- --serve      # the service alone, with requests to copy
//! ```
//!
//! What a user writes is in `service.rs` and `service/`; begin with `service/checkout.rs`. `outside.rs` is the rest of the
//! world, in processes of its own. The tour in `tour.rs` exits 0 only if every promise held.

mod outside;
mod service;
mod tour;

use std::process::ExitCode;

use idem_examples::{Error, Example, Server, Stage};
use idem_testing::TestDatabase;
use service::Settings;
use sqlx::PgPool;
use tokio::net::TcpListener;

struct Checkout;

impl Example for Checkout {
    const NAME: &'static str = "checkout";
    const TITLE: &'static str = "stock in Postgres, money at a provider, an e-mail: once each, whatever dies";

    async fn prepare(pool: &PgPool) -> Result<(), Error> {
        prepare(pool).await
    }

    async fn serve(
        pool: PgPool,
        listener: TcpListener,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), Error> {
        if let Some(settings) = Settings::from_environment()? {
            return service::serve(pool, settings, listener, stop).await;
        }
        let (provider, mail) = (Server::companion(outside::PROVIDER).await?, Server::companion(outside::MAIL).await?);
        let settings = Settings::new(provider.address(), mail.address());
        println!("provider: curl http://{}/ledger", provider.address());
        println!("e-mails:  curl http://{}/ledger", mail.address());
        service::serve(pool, settings, listener, stop).await
    }

    async fn tour(stage: &mut Stage, database: &TestDatabase) -> Result<(), Error> {
        tour::tour(stage, database).await
    }

    fn try_it(address: &str) -> String {
        include_str!("try_it.sh").trim_end().replace("ADDRESS", address)
    }

    async fn accompany(
        name: &str,
        listener: TcpListener,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), Error> {
        outside::serve(name, listener, stop).await
    }
}

/// The tables and the demo data.
async fn prepare(pool: &PgPool) -> Result<(), Error> {
    service::migrate(pool).await?;
    sqlx::raw_sql(include_str!("demo.sql")).execute(pool).await?;
    Ok(())
}

fn main() -> ExitCode {
    idem_examples::run::<Checkout>()
}
