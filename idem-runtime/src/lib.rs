#![doc = include_str!("../README.md")]

#[doc(hidden)]
pub mod attribute;
mod background;
mod builder;
mod call;
#[cfg(feature = "axum")]
mod completer;
pub mod contract;
#[cfg(feature = "axum")]
mod detached;
mod error;
mod fingerprint;
mod hex;
mod idempotency;
mod key;
mod lifecycle;
#[cfg(feature = "utoipa")]
pub mod openapi;
mod operation;
mod operation_id;
mod outbox;
mod postgres;
mod recorded;
mod resend;
#[cfg(feature = "axum")]
mod response;
#[cfg(feature = "axum")]
mod route;
mod scope;
mod settings;
mod status;
mod sweeper;
mod telemetry;
mod unused;

pub use builder::Builder;
#[cfg(feature = "axum")]
pub use completer::{Completer, Recovered};
pub use error::{Error, NotStorable};
pub use idem_macros::idempotent;
pub use idempotency::Idempotency;
pub use key::{IdempotencyKey, InvalidKey, Key, MAX_KEY_LENGTH};
pub use operation::{Operation, Reconciled, Step, StepName};
pub use outbox::{DeadLetter, Message, Outbox, Relay, RelayBuilder, Sent, TopicStatus};
pub use postgres::ending::Untidy;
pub use postgres::transaction::Tx;
pub use scope::{GlobalScope, MAX_SCOPE_LENGTH, Scope};
pub use status::{FailedOperation, Status};
pub use sweeper::Sweeper;

#[cfg(all(feature = "axum", any(test, fuzzing)))]
#[doc(hidden)]
pub mod __fuzz;
#[doc(hidden)]
pub mod __private;
