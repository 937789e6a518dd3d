use std::fmt;
use std::pin::Pin;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Operation, recovery_points};
use crate::error::Error;
use crate::key::IdempotencyKey;

type StepFuture<'a, T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send + 'a>>;

/// A call to another system, made when awaited. See [`Operation::step`].
#[must_use = "a step is made when it is awaited"]
pub struct Step<'a, F> {
    operation: &'a mut Operation,
    name: &'a str,
    call: F,
}

/// A [`Step`] that asks first whether it has happened. See [`Step::reconcile`].
#[must_use = "a step is made when it is awaited"]
pub struct Reconciled<'a, F, R> {
    step: Step<'a, F>,
    reconcile: R,
}

impl<'a, F> Step<'a, F> {
    pub(super) fn new(operation: &'a mut Operation, name: &'a str, call: F) -> Self {
        Self { operation, name, call }
    }

    /// For a system that knows no idempotency keys: the start is recorded durably, and an attempt that finds a start
    /// without a result asks `reconcile` first. `Some` is the result; `None` says that it never happened, and the call is
    /// made.
    ///
    /// It costs one commit more. What the other system does while nobody asks is beyond it: `reconcile` must find every call
    /// that may still take effect.
    pub fn reconcile<R, Found>(self, reconcile: R) -> Reconciled<'a, F, R>
    where
        R: FnOnce(IdempotencyKey) -> Found,
    {
        Reconciled { step: self, reconcile }
    }
}

impl<'a, F, Fut, T, E> IntoFuture for Step<'a, F>
where
    F: FnOnce(IdempotencyKey) -> Fut + Send + 'a,
    Fut: Future<Output = Result<T, E>> + Send + 'a,
    T: Serialize + DeserializeOwned + Send + Sync + 'a,
    E: From<Error> + Send + 'a,
{
    type Output = Result<T, E>;
    type IntoFuture = StepFuture<'a, T, E>;

    fn into_future(self) -> StepFuture<'a, T, E> {
        Box::pin(async move {
            let Self { operation, name, call } = self;
            if let Some(point) = operation.come_by(name)?
                && let Some(result) = operation.result_of(&point)?
            {
                operation.unfinished = None;
                return Ok(result);
            }
            operation.ensure_leased().await?;
            make(operation, name, call).await
        })
    }
}

impl<'a, F, R, Fut, Found, T, E> IntoFuture for Reconciled<'a, F, R>
where
    F: FnOnce(IdempotencyKey) -> Fut + Send + 'a,
    Fut: Future<Output = Result<T, E>> + Send + 'a,
    R: FnOnce(IdempotencyKey) -> Found + Send + 'a,
    Found: Future<Output = Result<Option<T>, E>> + Send + 'a,
    T: Serialize + DeserializeOwned + Send + Sync + 'a,
    E: From<Error> + Send + 'a,
{
    type Output = Result<T, E>;
    type IntoFuture = StepFuture<'a, T, E>;

    fn into_future(self) -> StepFuture<'a, T, E> {
        Box::pin(async move {
            let Self { step: Step { operation, name, call }, reconcile } = self;
            match operation.come_by(name)? {
                Some(point) => {
                    if let Some(result) = operation.result_of(&point)? {
                        operation.unfinished = None;
                        return Ok(result);
                    }
                    if let Some(result) = reconcile(operation.key().derive(name)).await? {
                        operation.finish(name, &result).await?;
                        return Ok(result);
                    }
                }
                None => {
                    operation.ensure_leased().await?;
                    let line = recovery_points::started(name).map_err(|error| operation.interrupt(error))?;
                    operation.record(&line).await?;
                }
            }
            make(operation, name, call).await
        })
    }
}

async fn make<T, E, Fut>(
    operation: &mut Operation,
    name: &str,
    call: impl FnOnce(IdempotencyKey) -> Fut,
) -> Result<T, E>
where
    Fut: Future<Output = Result<T, E>>,
    T: Serialize + DeserializeOwned,
    E: From<Error>,
{
    let result = call(operation.key().derive(name)).await?;
    operation.finish(name, &result).await?;
    Ok(result)
}

impl<F> fmt::Debug for Step<'_, F> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Step").field("name", &self.name).finish_non_exhaustive()
    }
}

impl<F, R> fmt::Debug for Reconciled<'_, F, R> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Reconciled").field("step", &self.step).finish_non_exhaustive()
    }
}
