//! What the expansion of `#[idempotent]` calls only for the error it gives if it does not compile. Nothing here does
//! anything when it runs, and nothing of it does run.

use std::marker::PhantomData;
use std::ops::Deref;

use axum::body::Body;
use axum::extract::{FromRef, FromRequest, FromRequestParts, Path, Query, RawForm, Request};
use axum::{Form, Json};
use bytes::Bytes;
use serde::de::DeserializeOwned;

use crate::idempotency::Idempotency;

/// A state in which the attribute finds its [`Idempotency`].
#[diagnostic::on_unimplemented(
    message = "the state `{Self}` must hold an `Idempotency`",
    label = "no `Idempotency` in this state",
    note = "add a field `idempotency: Idempotency` to `{Self}` and derive `axum::extract::FromRef` for it"
)]
pub trait HoldsIdempotency {}

#[diagnostic::do_not_recommend]
impl<S> HoldsIdempotency for S where Idempotency: FromRef<S> {}

/// What an extractor makes of a body or a URI.
#[diagnostic::on_unimplemented(
    message = "`{Self}` must implement `Deserialize` to be extracted from a request",
    label = "cannot be deserialized",
    note = "add `#[derive(serde::Deserialize)]` to `{Self}`"
)]
pub trait Payload {}

#[diagnostic::do_not_recommend]
impl<T: DeserializeOwned> Payload for T {}

/// What `State<_>` takes from a state.
#[diagnostic::on_unimplemented(
    message = "`{Self}` must be a part of the state `{S}`",
    label = "no `{Self}` in this state",
    note = "use `State<{S}>`, or add a field of this type to `{S}` and derive `axum::extract::FromRef` for it"
)]
pub trait PartOfState<S> {}

#[diagnostic::do_not_recommend]
impl<S, T: FromRef<S>> PartOfState<S> for T {}

/// An extractor that leaves the body to the next. The lifetime keeps the compiler from checking the bounds below where
/// they are declared.
#[diagnostic::on_unimplemented(
    message = "`{Self}` consumes the request's body and must be the last extractor",
    label = "move this argument to the end"
)]
pub trait LeavesTheBody<'a> {}

/// What gives no way past the transaction.
#[diagnostic::on_unimplemented(
    message = "`{Self}` leads to a pool, which writes outside of the transaction; use `tx`",
    label = "remove this, or add `allow(pool)` to the attribute if the pool is for reading or for another database"
)]
pub trait HoldsNoPool<'a> {}

/// A pool, whatever it is called.
pub trait Pool {}

impl<DB: sqlx::Database> Pool for sqlx::Pool<DB> {}

/// The state of the option `state`.
pub fn state<S: HoldsIdempotency>() {}

/// The argument `State<T>`.
pub fn part_of_state<T: PartOfState<S>, S>() {}

/// An argument before the last.
pub fn extractor_of_parts<T: FromRequestParts<S>, S>() {}

/// The last argument.
pub fn extractor_of_the_request<T: FromRequest<S, M>, S, M>() {}

/// A type among the arguments. The checks are its own functions for the extractors that are known here, and those of
/// [`Unknown`] for every other type, whatever it is called.
#[derive(Debug)]
pub struct Extractor<T>(PhantomData<T>);

/// Says nothing.
pub trait Unknown {
    /// The type of the last extractor.
    fn last() {}

    /// The type of an extractor before the last.
    fn before_the_last() {}

    /// A value that is no pool.
    fn is_no_pool(&self) {}

    /// A value that does not dereference to a pool, as `State<PgPool>` does.
    fn holds_no_pool(&self) {}

    /// A value that does not dereference to a pool in two steps, as `State<Arc<PgPool>>` does.
    fn holds_no_wrapped_pool(&self) {}

    /// A value that does not dereference to a pool in three steps.
    fn holds_no_deeply_wrapped_pool(&self) {}
}

impl<T> Unknown for Extractor<T> {}

/// The value of an extractor, or what a pattern among the arguments takes out of it.
#[derive(Debug)]
pub struct Value<T>(PhantomData<T>);

impl<T> Value<T> {
    /// The value's type.
    pub fn of(_: &T) -> Self {
        Self(PhantomData)
    }
}

impl<T> Unknown for Value<T> {}

impl<T: Pool> Value<T> {
    /// There must be no pool.
    pub fn is_no_pool<'a>(&self)
    where
        T: HoldsNoPool<'a>,
    {
    }
}

impl<T: Deref<Target: Pool>> Value<T> {
    /// There must be no pool.
    pub fn holds_no_pool<'a>(&self)
    where
        T: HoldsNoPool<'a>,
    {
    }
}

impl<T: Deref<Target: Deref<Target: Pool>>> Value<T> {
    /// There must be no pool.
    pub fn holds_no_wrapped_pool<'a>(&self)
    where
        T: HoldsNoPool<'a>,
    {
    }
}

impl<T: Deref<Target: Deref<Target: Deref<Target: Pool>>>> Value<T> {
    /// There must be no pool.
    pub fn holds_no_deeply_wrapped_pool<'a>(&self)
    where
        T: HoldsNoPool<'a>,
    {
    }
}

impl<T> Extractor<Form<T>> {
    /// The payload must be readable from the body.
    pub fn last()
    where
        T: Payload,
    {
    }

    /// The body must be left alone.
    pub fn before_the_last<'a>()
    where
        Form<T>: LeavesTheBody<'a>,
    {
    }
}

impl<T> Extractor<Json<T>> {
    /// The payload must be readable from the body.
    pub fn last()
    where
        T: Payload,
    {
    }

    /// The body must be left alone.
    pub fn before_the_last<'a>()
    where
        Json<T>: LeavesTheBody<'a>,
    {
    }
}

impl<T> Extractor<Path<T>> {
    /// The payload must be readable from the URI.
    pub fn last()
    where
        T: Payload,
    {
    }

    /// The payload must be readable from the URI.
    pub fn before_the_last()
    where
        T: Payload,
    {
    }
}

impl<T> Extractor<Query<T>> {
    /// The payload must be readable from the URI.
    pub fn last()
    where
        T: Payload,
    {
    }

    /// The payload must be readable from the URI.
    pub fn before_the_last()
    where
        T: Payload,
    {
    }
}

impl Extractor<Body> {
    /// The body must be left alone.
    pub fn before_the_last<'a>()
    where
        Body: LeavesTheBody<'a>,
    {
    }
}

impl Extractor<Bytes> {
    /// The body must be left alone.
    pub fn before_the_last<'a>()
    where
        Bytes: LeavesTheBody<'a>,
    {
    }
}

impl Extractor<RawForm> {
    /// The body must be left alone.
    pub fn before_the_last<'a>()
    where
        RawForm: LeavesTheBody<'a>,
    {
    }
}

impl Extractor<Request> {
    /// The body must be left alone.
    pub fn before_the_last<'a>()
    where
        Request: LeavesTheBody<'a>,
    {
    }
}

impl Extractor<String> {
    /// The body must be left alone.
    pub fn before_the_last<'a>()
    where
        String: LeavesTheBody<'a>,
    {
    }
}
