use std::error::Error;
use std::io;

use axum::RequestExt;
use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, Request};
use axum::response::{IntoResponse, Response};
use futures_util::TryFutureExt;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http_body_util::{BodyExt, LengthLimitError, Limited};

use super::{Digest, digest_of_body, sha256};
use crate::attribute::Checks;

/// An extractor's value beside the digest of the body that it was made from.
///
/// The body is buffered as [`Bytes`] does it, so `DefaultBodyLimit` holds, and given to `T` whole.
#[derive(Debug)]
pub struct WithFingerprint<T, const CHECKED: bool = true> {
    /// What `T` extracted.
    pub value: T,
    /// The body and its digest.
    pub digest: Digest,
}

/// An extractor of the whole request, or one that fails its checks.
pub trait ExtractsLast<T, S, M>: Sized {
    /// What the extractor does.
    fn extract(request: Request, state: &S) -> impl Future<Output = Result<T, Response>> + Send;
}

impl<T: FromRequest<S, M>, S: Sync, M> ExtractsLast<T, S, M> for Checks<true> {
    fn extract(request: Request, state: &S) -> impl Future<Output = Result<T, Response>> + Send {
        T::from_request(request, state).map_err(IntoResponse::into_response)
    }
}

impl<T, S: Sync, M> ExtractsLast<T, S, M> for Checks<false> {
    async fn extract(_: Request, _: &S) -> Result<T, Response> {
        unreachable!("checks that compile are true")
    }
}

impl<S, T, M, const CHECKED: bool> FromRequest<S, (M,)> for WithFingerprint<T, CHECKED>
where
    S: Send + Sync,
    T: Send,
    Checks<CHECKED>: ExtractsLast<T, S, M>,
{
    type Rejection = Response;

    async fn from_request(request: Request, state: &S) -> Result<Self, Response> {
        let (parts, body) = request.into_parts();
        let buffered = Request::from_parts(parts.clone(), body).into_limited_body().collect().await;
        let body = match buffered {
            Ok(body) => body.to_bytes(),
            Err(error) => return Self::without_body(parts, &error, state).await,
        };
        let content_type = parts.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let digest = Digest { hash: digest_of_body(content_type, &body), body: body.clone(), is_whole: true };
        let request = Request::from_parts(parts, Body::from(body));
        let value = <Checks<CHECKED> as ExtractsLast<T, S, M>>::extract(request, state).await?;
        Ok(Self { value, digest })
    }
}

impl<T, const CHECKED: bool> WithFingerprint<T, CHECKED> {
    /// A body that is too long, or that did not arrive, is the extractor's to refuse, in its own words: it gets one that fails in the
    /// same way. All requests without a body that could be read count as the same.
    async fn without_body<S, M>(parts: Parts, error: &axum::Error, state: &S) -> Result<Self, Response>
    where
        Checks<CHECKED>: ExtractsLast<T, S, M>,
    {
        let hash = sha256(&[b"no body"]);
        let request = Request::from_parts(parts, failing(error));
        let value = <Checks<CHECKED> as ExtractsLast<T, S, M>>::extract(request, state).await?;
        Ok(Self { value, digest: Digest { hash, body: Bytes::new(), is_whole: false } })
    }
}

/// A body that fails for an extractor as the client's did.
fn failing(error: &axum::Error) -> Body {
    let is_limit = |error: &(dyn Error + 'static)| error.is::<LengthLimitError>();
    if error.source().is_some_and(is_limit) {
        // The limit is the extractor's own, and stops it again.
        let endless = futures_util::stream::repeat_with(|| Ok::<_, io::Error>(Bytes::from_static(&[b' '; 4_096])));
        return Body::from_stream(endless);
    }
    let mut cause: &(dyn Error + 'static) = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    if is_limit(cause) {
        return Body::new(Limited::new(Body::from("too long"), 0));
    }
    let failed = io::Error::other(cause.to_string());
    Body::from_stream(futures_util::stream::iter([Err::<Bytes, _>(failed)]))
}

/// The last argument with checks of its type, where no fingerprint is made of the body.
#[derive(Debug)]
pub struct CheckedLast<T, const CHECKED: bool = true>(pub T);

impl<S, T, M, const CHECKED: bool> FromRequest<S, (M,)> for CheckedLast<T, CHECKED>
where
    S: Send + Sync,
    T: Send,
    Checks<CHECKED>: ExtractsLast<T, S, M>,
{
    type Rejection = Response;

    async fn from_request(request: Request, state: &S) -> Result<Self, Response> {
        <Checks<CHECKED> as ExtractsLast<T, S, M>>::extract(request, state).await.map(Self)
    }
}
