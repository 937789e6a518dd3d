//! What a function that is called, and not routed, returns.

use super::parts::{FromError, Recorded};

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

    /// The same, back.
    fn from_result(result: Result<Self::Value, Self::Error>) -> Self;
}

impl<T: Recorded, E: FromError> FunctionResult for Result<T, E> {
    type Value = T;
    type Error = E;

    fn into_result(self) -> Self {
        self
    }

    fn from_result(result: Self) -> Self {
        result
    }
}

/// The result of a function.
///
/// # Errors
/// The function's.
pub fn result<R: FunctionResult>(result: R) -> Result<R::Value, R::Error> {
    result.into_result()
}

/// What the function returned, or what an earlier call of it did.
pub fn returned<R: FunctionResult>(result: Result<R::Value, R::Error>) -> R {
    R::from_result(result)
}
