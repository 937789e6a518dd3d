//! The parts of the expansion of `#[idempotent]` that compiler errors name: the words here are the words of the errors.
//! They change without notice.

#[cfg(feature = "axum")]
mod check;
#[cfg(feature = "axum")]
mod conflict;
#[cfg(feature = "axum")]
mod extract;
mod misuse;
mod parts;
mod result;

#[cfg(feature = "axum")]
pub use check::{
    Extractor, HoldsIdempotency, HoldsNoPool, LeavesTheBody, PartOfState, Payload, Pool, Unknown, Value,
    extractor_of_parts, extractor_of_the_request, part_of_state, state,
};
#[cfg(feature = "axum")]
pub use conflict::{Returned, ReturnsNothingToLookThrough, answer};
#[cfg(feature = "axum")]
pub use extract::{
    Checked, Checks, Extracts, FromState, IdempotencyFromArguments, IdempotencyFromState, IsIdempotency, idempotency,
};
pub use misuse::EndsWithTheFunction;
pub use parts::{FromError, Recorded};
pub use result::{FunctionResult, result, returned};

#[cfg(feature = "axum")]
pub use crate::fingerprint::{CheckedLast, ExtractsLast, WithFingerprint};
use crate::key::{IdempotencyKey, InvalidKey, Key};
use crate::scope::{EncodedScope, Scope};

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

/// What `fingerprint = …` may be.
#[diagnostic::on_unimplemented(
    message = "`{Self}` must implement `Serialize` to be a fingerprint",
    label = "cannot be serialized",
    note = "add `#[derive(serde::Serialize)]` to it, or use some of its fields, as in `fingerprint = (order.product, order.total)`"
)]
pub trait Fingerprint: serde::Serialize {}

#[diagnostic::do_not_recommend]
impl<T: serde::Serialize + ?Sized> Fingerprint for T {}

/// `fingerprint = …`
pub fn fingerprint(value: &(impl Fingerprint + ?Sized)) -> [u8; 32] {
    // A value that does not serialize has no stable identity: it counts as itself, and never equals another.
    let json = serde_json::to_vec(value).unwrap_or_else(|_| IdempotencyKey::random().as_str().as_bytes().to_vec());
    crate::fingerprint::digest_of_body(Some("application/json"), &json)
}
