use std::fmt;
use std::pin::Pin;

use futures_util::future::BoxFuture;

use super::recovery_points::RecoveryPoint;
use super::{Operation, recovery_points};
use crate::attribute::{FromError, Recorded};
use crate::error::Error;
use crate::key::IdempotencyKey;

type StepFuture<'a, T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send + 'a>>;

/// A call with its future boxed, so that a [`Step`] is known by what it gives.
pub(super) type Call<'a, T, E> = Box<dyn FnOnce(IdempotencyKey) -> BoxFuture<'a, Result<T, E>> + Send + 'a>;

type Reconcile<'a, T, E> = Call<'a, Option<T>, E>;

/// A call to another system, made when awaited. See [`Operation::step`].
#[must_use = "a step is made when it is awaited"]
pub struct Step<'a, T, E> {
    operation: &'a mut Operation,
    name: String,
    call: Call<'a, T, E>,
    form: Form<T, E>,
}

/// A [`Step`] that asks first whether it has happened. See [`Step::reconcile`].
#[must_use = "a step is made when it is awaited"]
pub struct Reconciled<'a, T, E> {
    step: Step<'a, T, E>,
    reconcile: Reconcile<'a, T, E>,
}

/// What [`Operation::step`] knows of the types. Awaiting asks nothing more of them, so that a type that does not fit is
/// reported once, where the step is.
struct Form<T, E> {
    finished: fn(&str, &T) -> Result<Vec<u8>, Error>,
    result: fn(&RecoveryPoint) -> Result<Option<T>, Error>,
    error: fn(Error) -> E,
}

impl<'a, T, E> Step<'a, T, E> {
    pub(super) fn new(operation: &'a mut Operation, name: String, call: Call<'a, T, E>) -> Self
    where
        T: Recorded,
        E: FromError,
    {
        let form =
            Form { finished: recovery_points::finished::<T>, result: RecoveryPoint::result::<T>, error: E::from };
        Self { operation, name, call, form }
    }

    /// For a system that knows no idempotency keys: the start is recorded durably, and an attempt that finds a start
    /// without a result asks `reconcile` first. `Some` is the result; `None` says that it never happened, and the call is
    /// made.
    ///
    /// It costs one commit more. What the other system does while nobody asks is beyond it: `reconcile` must find every call
    /// that may still take effect.
    pub fn reconcile<R, Found>(self, reconcile: R) -> Reconciled<'a, T, E>
    where
        R: FnOnce(IdempotencyKey) -> Found + Send + 'a,
        Found: Future<Output = Result<Option<T>, E>> + Send + 'a,
    {
        Reconciled { step: self, reconcile: Box::new(move |key| Box::pin(reconcile(key))) }
    }

    /// The recorded result of the part that is here, if there is one.
    fn recorded(&mut self, point: &RecoveryPoint) -> Result<Option<T>, E> {
        let result = (self.form.result)(point);
        let result = result.map_err(|error| (self.form.error)(self.operation.interrupt(error)))?;
        if result.is_some() {
            self.operation.unfinished = None;
        }
        Ok(result)
    }

    fn come_by(&mut self) -> Result<Option<RecoveryPoint>, E> {
        self.operation.come_by(&self.name).map_err(self.form.error)
    }

    async fn make(self) -> Result<T, E>
    where
        T: Send,
        E: Send,
    {
        let Self { operation, name, call, form } = self;
        let result = call(operation.key().derive(&name)).await?;
        form.record(operation, &name, result).await
    }
}

impl<T: Send, E: Send> Form<T, E> {
    async fn record(&self, operation: &mut Operation, name: &str, result: T) -> Result<T, E> {
        let line = (self.finished)(name, &result).map_err(|error| (self.error)(operation.interrupt(error)))?;
        operation.record(&line).await.map_err(self.error)?;
        operation.unfinished = None;
        Ok(result)
    }
}

impl<'a, T, E> IntoFuture for Step<'a, T, E>
where
    T: Send + 'a,
    E: Send + 'a,
{
    type Output = Result<T, E>;
    type IntoFuture = StepFuture<'a, T, E>;

    fn into_future(mut self) -> StepFuture<'a, T, E> {
        Box::pin(async move {
            if let Some(point) = self.come_by()?
                && let Some(result) = self.recorded(&point)?
            {
                return Ok(result);
            }
            self.operation.ensure_leased().await.map_err(self.form.error)?;
            self.make().await
        })
    }
}

impl<'a, T, E> IntoFuture for Reconciled<'a, T, E>
where
    T: Send + 'a,
    E: Send + 'a,
{
    type Output = Result<T, E>;
    type IntoFuture = StepFuture<'a, T, E>;

    fn into_future(self) -> StepFuture<'a, T, E> {
        Box::pin(async move {
            let Self { mut step, reconcile } = self;
            if let Some(point) = step.come_by()? {
                if let Some(result) = step.recorded(&point)? {
                    return Ok(result);
                }
                let Step { operation, name, form, .. } = &mut step;
                if let Some(result) = reconcile(operation.key().derive(name)).await? {
                    return form.record(operation, name, result).await;
                }
            } else {
                let Step { operation, name, form, .. } = &mut step;
                operation.ensure_leased().await.map_err(form.error)?;
                let line = recovery_points::started(name);
                let line = line.map_err(|error| (form.error)(operation.interrupt(error)))?;
                operation.record(&line).await.map_err(form.error)?;
            }
            step.make().await
        })
    }
}

impl<T, E> fmt::Debug for Step<'_, T, E> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Step").field("name", &self.name).finish_non_exhaustive()
    }
}

impl<T, E> fmt::Debug for Reconciled<'_, T, E> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Reconciled").field("step", &self.step).finish_non_exhaustive()
    }
}
