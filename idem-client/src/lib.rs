#![doc = include_str!("../README.md")]

pub mod back_off;
pub mod classify;

mod attempt;
mod body;
mod breaker;
mod budget;
mod client;
mod dates;
mod delivery;
mod edge;
mod error;
mod journal;
mod key;
mod layer;
mod limits;
mod observe;
mod redirect;
mod response;
mod under_way;

pub use body::ReplayableBody;
pub use breaker::BreakerState;
pub use budget::BudgetState;
pub use client::{Builder, Client, RequestBuilder};
pub use edge::NetworkEdge;
pub use error::{Error, Failure, GaveUp, KeyProblem, Reason, Refusal};
#[cfg(feature = "postgres")]
pub use journal::PostgresJournal;
pub use journal::{FileJournal, Journal, JournalError, Record};
pub use key::{Canonical, InvalidKey, Key, KeyPart, MAX_KEY_LENGTH};
pub use layer::{ATTEMPT_HEADER, Attempts, Layer};
pub use limits::{Limits, Overrides, SettingError};
pub use observe::{AttemptReport, NextStep};
pub use redirect::redirect_policy;
pub use response::ResponseExt;
pub use {reqwest, reqwest_middleware};

#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod __fuzz;

#[doc = include_str!("../docs/integrators.md")]
pub mod integrators {}
