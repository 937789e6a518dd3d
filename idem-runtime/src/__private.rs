//! What the expansion of `#[idempotent]` names. No one else may: it changes without notice.

pub use std::boxed::Box;

#[cfg(feature = "axum")]
pub use axum::response::{IntoResponse, Response};

pub use crate::call::{Call, Request};
pub use crate::fingerprint::Digest;
pub use crate::postgres::statements::Isolation;
pub use crate::scope::EncodedScope;
