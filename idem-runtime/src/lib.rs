#![doc = include_str!("../README.md")]

mod background;
mod builder;
mod call;
mod claim;
#[cfg(feature = "axum")]
mod completer;
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
#[cfg(feature = "utoipa")]
pub mod openapi;
mod operation;
mod outbox;
mod recent;
mod registry;
mod resend;
#[cfg(feature = "axum")]
mod response;
#[cfg(feature = "axum")]
mod route;
mod schema;
mod scope;
mod statements;
mod status;
mod stored;
mod sweeper;
mod telemetry;
mod transaction;

pub use builder::Builder;
#[cfg(feature = "axum")]
pub use completer::{Completer, Recovered};
pub use error::{Error, NotStorable};
pub use idem_macros::idempotent;
pub use idempotency::Idempotency;
pub use key::{IdempotencyKey, InvalidKey, Key, MAX_KEY_LENGTH};
pub use operation::{Operation, Reconciled, Step};
pub use outbox::{DeadLetter, Message, Outbox, Relay};
pub use scope::{GlobalScope, MAX_SCOPE_LENGTH, Scope};
pub use status::{FailedOperation, Status};
pub use sweeper::Sweeper;
pub use transaction::Tx;

#[cfg(all(feature = "axum", any(test, fuzzing)))]
#[doc(hidden)]
pub mod __fuzz;
#[doc(hidden)]
pub mod __private;
