use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, Request};
use axum::response::{IntoResponse, Response};
use http::header::CONTENT_TYPE;

use super::{Digest, digest_of_body};

/// An extractor's value beside the digest of the body that it was made from.
///
/// The body is buffered as [`Bytes`] does it, so `DefaultBodyLimit` holds, and given to `T` whole.
#[derive(Debug)]
pub struct Fingerprinted<T> {
    /// What `T` extracted.
    pub value: T,
    /// The body and its digest.
    pub digest: Digest,
}

impl<S, T, M> FromRequest<S, (M,)> for Fingerprinted<T>
where
    S: Send + Sync,
    T: FromRequest<S, M>,
{
    type Rejection = Response;

    async fn from_request(request: Request, state: &S) -> Result<Self, Response> {
        let (parts, body) = request.into_parts();
        let buffered = Request::from_parts(parts.clone(), body);
        let body = Bytes::from_request(buffered, state).await.map_err(IntoResponse::into_response)?;
        let content_type = parts.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let digest = Digest { hash: digest_of_body(content_type, &body), body: body.clone() };
        let request = Request::from_parts(parts, Body::from(body));
        let value = T::from_request(request, state).await.map_err(IntoResponse::into_response)?;
        Ok(Self { value, digest })
    }
}
