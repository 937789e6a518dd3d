use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, Request};
use axum::response::{IntoResponse, Response};
use futures_util::TryFutureExt;
use http::header::CONTENT_TYPE;

use super::{Digest, digest_of_body};
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
        let buffered = Request::from_parts(parts.clone(), body);
        let body = Bytes::from_request(buffered, state).await.map_err(IntoResponse::into_response)?;
        let content_type = parts.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let digest = Digest { hash: digest_of_body(content_type, &body), body: body.clone() };
        let request = Request::from_parts(parts, Body::from(body));
        let value = <Checks<CHECKED> as ExtractsLast<T, S, M>>::extract(request, state).await?;
        Ok(Self { value, digest })
    }
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
