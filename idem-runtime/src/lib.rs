#![doc = include_str!("../README.md")]

mod builder;
mod call;
mod claim;
mod completion;
pub mod contract;
mod error;
#[cfg(feature = "axum")]
mod execution;
mod fingerprint;
mod function;
mod hex;
mod idempotency;
mod key;
mod operation;
mod registry;
mod resend;
#[cfg(feature = "axum")]
mod response;
#[cfg(feature = "axum")]
mod route;
mod schema;
mod scope;
mod statements;
mod stored;
mod sweeper;
mod telemetry;
mod transaction;

pub use builder::Builder;
pub use error::{Error, NotStorable};
pub use idem_macros::idempotent;
pub use idempotency::Idempotency;
pub use key::{IdempotencyKey, InvalidKey, Key, MAX_KEY_LENGTH};
pub use operation::{Operation, Reconciled, Step};
pub use scope::{MAX_SCOPE_LENGTH, Scope};
pub use sweeper::Sweeper;
pub use transaction::Tx;

#[doc(hidden)]
pub mod __private;
