//! What the expansion of `#[idempotent]` names. No one else may: it changes without notice.

mod result;

pub use std::boxed::Box;

pub use result::{FunctionResult, result, returned};

#[cfg(feature = "axum")]
pub use axum::response::{IntoResponse, Response};

pub use crate::call::{Call, Request};
pub use crate::fingerprint::Digest;
pub use crate::postgres::statements::Isolation;
pub use crate::scope::EncodedScope;
