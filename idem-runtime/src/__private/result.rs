//! What a function that is called, and not routed, returns.

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
