//! What the expansion of `#[idempotent]` names. No one else may: it changes without notice.

#[cfg(feature = "axum")]
pub mod check;

mod result;

pub use std::boxed::Box;

pub use result::{FunctionResult, Recorded, result};

#[cfg(feature = "axum")]
pub use axum::response::{IntoResponse, Response};

pub use crate::call::{Call, Request};
pub use crate::fingerprint::Digest;
#[cfg(feature = "axum")]
pub use crate::fingerprint::Fingerprinted;
pub use crate::postgres::statements::Isolation;
pub use crate::scope::EncodedScope;

use crate::key::{IdempotencyKey, InvalidKey, Key};
use crate::scope::Scope;

/// `scope = …`
pub fn scope(scope: &(impl Scope + ?Sized)) -> EncodedScope {
    EncodedScope::of(scope)
}

/// `scope = global`
#[must_use]
pub fn global_scope() -> EncodedScope {
    EncodedScope::global()
}

/// `key = …`
///
/// # Errors
/// [`InvalidKey`] for an empty text.
pub fn key(key: &(impl Key + ?Sized)) -> Result<IdempotencyKey, InvalidKey> {
    IdempotencyKey::natural(key.key())
}

/// `fingerprint = …`
pub fn fingerprint(value: &(impl serde::Serialize + ?Sized)) -> [u8; 32] {
    // A value that does not serialize has no stable identity: it counts as itself, and never equals another.
    let json = serde_json::to_vec(value).unwrap_or_else(|_| IdempotencyKey::random().as_str().as_bytes().to_vec());
    crate::fingerprint::digest_of_body(Some("application/json"), &json)
}
