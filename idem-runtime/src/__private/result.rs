//! What a function that is called, and not routed, returns.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// What can be stored, and returned to a redelivery.
#[diagnostic::on_unimplemented(
    message = "`{Self}` must implement `Serialize` and `Deserialize` to be stored and returned to a redelivery",
    label = "cannot be stored",
    note = "add `#[derive(serde::Serialize, serde::Deserialize)]` to `{Self}`"
)]
pub trait Recorded: Serialize + DeserializeOwned {}

#[diagnostic::do_not_recommend]
impl<T: Serialize + DeserializeOwned> Recorded for T {}

/// What a function that takes `&Idempotency` returns.
#[diagnostic::on_unimplemented(
    message = "a function that takes `&Idempotency` must return a `Result`, not `{Self}`",
    label = "use `Result<{Self}, E>` with an error that is `From<idem_runtime::Error>`"
)]
pub trait FunctionResult {
    /// What is stored.
    type Value;
    /// What is not.
    type Error;

    /// The same.
    ///
    /// # Errors
    /// The function's.
    fn into_result(self) -> Result<Self::Value, Self::Error>;
}

impl<T, E> FunctionResult for Result<T, E> {
    type Value = T;
    type Error = E;

    fn into_result(self) -> Self {
        self
    }
}

/// The result of a function.
///
/// # Errors
/// The function's.
pub fn result<R: FunctionResult>(result: R) -> Result<R::Value, R::Error> {
    result.into_result()
}
