//! The life of an operation, from the claim of its key to its stored outcome: one for handlers and functions, which differ in what
//! they return and in who waits for them.
//!
//! 1. [`in_flight`]: duplicates in this process meet the operation that runs.
//! 2. [`claim`]: the key's lock and the look-up.
//! 3. [`unit`]: the handler works with one transaction, or with an operation of several commits.
//! 4. [`completion`]: what it returns is committed, refused or released, and stored.
//!
//! [`handler`] and [`function`] are the two ends, [`unkeyed`] the life of a request without a key.

pub(crate) mod claim;
pub(crate) mod completion;
pub(crate) mod function;
#[cfg(feature = "axum")]
pub(crate) mod handler;
pub(crate) mod in_flight;
pub(crate) mod outcome;
pub(crate) mod recent;
pub(crate) mod unit;
#[cfg(feature = "axum")]
pub(crate) mod unkeyed;
