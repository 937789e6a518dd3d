//! The first argument of a generated handler. Its name is the first thing that axum's errors about the handler show.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{FromRef, FromRequestParts, OriginalUri};
use axum::response::IntoResponse;
use futures_util::TryFutureExt;
use http::request::Parts;
use http::{HeaderMap, Method};

use crate::call::{Call, Request};
use crate::completer::Recovered;
use crate::idempotency::Idempotency;

/// Whether the checks of an argument compile. With an error among them it has no value, so that everything below holds
/// for it: a handler that fails a check is not reported a second time where it is routed.
#[derive(Debug)]
pub struct Checks<const COMPILE: bool>;

/// Takes the [`Idempotency`] out of the state. A handler does not compile behind a router whose state has none.
#[derive(Debug)]
pub struct IdempotencyFromState<const CHECKED: bool = true>(Call);

/// A state that has an [`Idempotency`], or whose handler fails its checks.
pub trait FromState<S> {
    /// The one in the state.
    fn idempotency(state: &S) -> Idempotency;
}

impl<S> FromState<S> for Checks<true>
where
    Idempotency: FromRef<S>,
{
    fn idempotency(state: &S) -> Idempotency {
        Idempotency::from_ref(state)
    }
}

impl<S> FromState<S> for Checks<false> {
    fn idempotency(_: &S) -> Idempotency {
        unreachable!("checks that compile are true")
    }
}

/// It never rejects: who asks is settled before which key is sent.
impl<S, const CHECKED: bool> FromRequestParts<S> for IdempotencyFromState<CHECKED>
where
    S: Send + Sync,
    Checks<CHECKED>: FromState<S>,
{
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Infallible> {
        let request = IdempotencyFromArguments::<true>::from_request_parts(parts, state).await?;
        Ok(Self(request.with(Checks::idempotency(state))))
    }
}

impl<const CHECKED: bool> IdempotencyFromState<CHECKED> {
    /// Names the handler and how long its outcomes are replayed.
    #[must_use]
    pub fn handler(self, name: &'static str, ttl: Duration) -> Request {
        self.0.handler(name, ttl)
    }
}

/// An argument with checks of its type.
#[derive(Debug)]
pub struct Checked<T, const CHECKED: bool = true>(pub T);

/// An extractor, or one that fails its checks.
pub trait Extracts<T, S>: Sized {
    /// The extractor's.
    type Rejection: IntoResponse;

    /// What the extractor does.
    fn extract(parts: &mut Parts, state: &S) -> impl Future<Output = Result<T, Self::Rejection>> + Send;
}

impl<T: FromRequestParts<S>, S> Extracts<T, S> for Checks<true> {
    type Rejection = T::Rejection;

    fn extract(parts: &mut Parts, state: &S) -> impl Future<Output = Result<T, Self::Rejection>> + Send {
        T::from_request_parts(parts, state)
    }
}

impl<T, S> Extracts<T, S> for Checks<false> {
    type Rejection = Infallible;

    fn extract(_: &mut Parts, _: &S) -> impl Future<Output = Result<T, Infallible>> + Send {
        unreachable!("checks that compile are true");
        #[allow(unreachable_code, reason = "names the type")]
        std::future::pending()
    }
}

impl<T, S, const CHECKED: bool> FromRequestParts<S> for Checked<T, CHECKED>
where
    S: Send + Sync,
    Checks<CHECKED>: Extracts<T, S>,
{
    type Rejection = <Checks<CHECKED> as Extracts<T, S>>::Rejection;

    fn from_request_parts(parts: &mut Parts, state: &S) -> impl Future<Output = Result<Self, Self::Rejection>> + Send {
        Checks::<CHECKED>::extract(parts, state).map_ok(Self)
    }
}

/// Leaves the state alone: `idempotency = …` finds the [`Idempotency`] in the handler's arguments.
#[derive(Debug)]
pub struct IdempotencyFromArguments<const CHECKED: bool = true> {
    method: Method,
    path_and_query: String,
    headers: HeaderMap,
    recovered: Option<Recovered>,
}

impl<S: Send + Sync, const CHECKED: bool> FromRequestParts<S> for IdempotencyFromArguments<CHECKED> {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        // `nest` rewrites the URI that handlers see.
        let uri = parts.extensions.get::<OriginalUri>().map_or(&parts.uri, |original| &original.0);
        let path_and_query = uri.path_and_query().map_or_else(String::new, ToString::to_string);
        let recovered = parts.extensions.get::<Recovered>().cloned();
        Ok(Self { method: parts.method.clone(), path_and_query, headers: parts.headers.clone(), recovered })
    }
}

impl<const CHECKED: bool> IdempotencyFromArguments<CHECKED> {
    /// The call, now that the handle is known.
    #[must_use]
    pub fn with(self, idempotency: Idempotency) -> Call {
        Call::request(idempotency, self.method, self.path_and_query, &self.headers, self.recovered)
    }
}

/// What `idempotency = …` may be.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no `Idempotency`",
    label = "must be the application's `Idempotency`",
    note = "name the place where it is kept, as in `idempotency = state.idempotency`"
)]
pub trait IsIdempotency {
    /// The handle itself.
    fn handle(&self) -> Idempotency;
}

impl IsIdempotency for Idempotency {
    fn handle(&self) -> Idempotency {
        self.clone()
    }
}

impl<T: IsIdempotency + ?Sized> IsIdempotency for &T {
    fn handle(&self) -> Idempotency {
        (**self).handle()
    }
}

impl<T: IsIdempotency + ?Sized> IsIdempotency for Arc<T> {
    fn handle(&self) -> Idempotency {
        (**self).handle()
    }
}

/// `idempotency = …`
pub fn idempotency(idempotency: &(impl IsIdempotency + ?Sized)) -> Idempotency {
    idempotency.handle()
}
