//! Attack your own handlers.
//!
//! - [`Postgres`]: a server from the binaries on this machine, which goes away with the last process that holds it.
//! - [`TestDatabase`]: a database for each test on a server that all parallel tests share.
//! - [`proxy`]: counts what passes between a pool and Postgres, and breaks it at the n-th message.
//!
//! ```no_run
//! # async fn example() -> Result<(), sqlx::Error> {
//! let database = idem_testing::TestDatabase::create().await?;
//! sqlx::query("CREATE TABLE orders (id bigint PRIMARY KEY)").execute(&database.pool()).await?;
//! # Ok(())
//! # }
//! ```

#[cfg(not(unix))]
compile_error!("`idem-testing` must run on Unix; use the Windows Subsystem for Linux");

mod client;
mod contract;
mod crash;
mod database;
mod external;
mod lane;
mod postgres;
pub mod proxy;
mod subject;

pub use contract::{Contract, ContractReport, Finding, contract};
pub use crash::{CrashMatrix, CrashReport, Strike, Trial, crash_matrix};
pub use database::TestDatabase;
pub use external::ExternalCalls;
pub use postgres::{Postgres, PostgresOptions, Shutdown};
pub use subject::RequestTemplate;
