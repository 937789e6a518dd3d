//! The life of an operation, from the claim of its key to its stored outcome.

pub(crate) mod claim;
pub(crate) mod completion;
#[cfg(feature = "axum")]
pub(crate) mod execution;
pub(crate) mod function;
pub(crate) mod in_flight;
pub(crate) mod outcome;
pub(crate) mod recent;
