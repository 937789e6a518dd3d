//! What the parts of an operation, and functions that are called, may return.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::Error;

/// What can be stored, and given back to a retry.
#[diagnostic::on_unimplemented(
    message = "`{Self}` must implement `Serialize` and `Deserialize` to be recorded and given back to a retry",
    label = "cannot be recorded",
    note = "add `#[derive(serde::Serialize, serde::Deserialize)]` to `{Self}`"
)]
pub trait Recorded: Serialize + DeserializeOwned {}

#[diagnostic::do_not_recommend]
impl<T: Serialize + DeserializeOwned> Recorded for T {}

/// What can say that the claim failed.
#[diagnostic::on_unimplemented(
    message = "`{Self}` must implement `From<idem_runtime::Error>` to say that the claim failed",
    label = "cannot be made from `idem_runtime::Error`",
    note = "write `impl From<idem_runtime::Error> for {Self}`, or return an error type that has it"
)]
pub trait FromError: From<Error> {}

#[diagnostic::do_not_recommend]
impl<E: From<Error>> FromError for E {}
