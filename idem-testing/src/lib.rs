#![doc = include_str!("../README.md")]

#[cfg(not(unix))]
compile_error!("`idem-testing` must run on Unix; use the Windows Subsystem for Linux");

mod baseline;
mod client;
mod contract;
mod crash;
mod database;
mod external;
mod finding;
mod lane;
mod postgres;
pub mod proxy;
mod subject;

pub use contract::{Contract, ContractReport, contract};
pub use crash::{CrashMatrix, CrashReport, Strike, Trial, crash_matrix};
pub use database::TestDatabase;
pub use external::{ExternalCalls, ProviderDown};
pub use finding::Finding;
pub use postgres::{Postgres, PostgresOptions, Shutdown};
pub use subject::RequestTemplate;
