//! One attempt: send, wait for the whole answer, say what it means.
//!
//! The answer's body is read within the attempt, up to a limit, because a connection that breaks in the middle of it
//! is a lost answer like any other: the caller must not meet it outside the reach of the retries.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{Extensions, StatusCode};
use http_body::Frame;
use reqwest::{Body, Request, Response, ResponseBuilderExt as _};
use reqwest_middleware::Next;
use tokio::time::Instant;

use crate::classify::{Answer, Fate};
use crate::error::Failure;
use crate::redirect;

/// What came of an attempt.
pub(crate) enum Outcome {
    /// An answer, whatever its status, with its body as far as it is buffered.
    Answered(Response, Answer),
    /// No whole answer. What was seen of it, if anything was.
    Failed(Failure, Fate, Option<Answer>),
    /// Another middleware failed; not ours to judge.
    Foreign(reqwest_middleware::Error),
}

/// Sends the request once and waits for the answer until `until`.
pub(crate) async fn send(
    request: Request,
    extensions: &mut Extensions,
    next: Next<'_>,
    until: Instant,
    buffer_limit: usize,
) -> Outcome {
    let method = request.method().clone();
    let mut seen = None;
    let exchange = async {
        let response = next.run(request, extensions).await?;
        buffer(response, buffer_limit, &mut seen).await.map_err(reqwest_middleware::Error::Reqwest)
    };
    let watched = redirect::watch(&method, exchange);
    match tokio::time::timeout_at(until, watched).await {
        Err(_) => Outcome::Failed(Failure::TimedOut, Fate::Unknown, seen),
        Ok((Ok((response, answer)), _)) => Outcome::Answered(response, answer),
        Ok((Err(reqwest_middleware::Error::Reqwest(error)), redirected)) => failed(error, redirected, seen),
        Ok((Err(foreign), _)) => Outcome::Foreign(foreign),
    }
}

fn failed(error: reqwest::Error, redirected: bool, seen: Option<Answer>) -> Outcome {
    // The URL may hold secrets in its query; the errors that are shown name it without.
    let error = error.without_url();
    let sent = if redirected { Fate::Unknown } else { Fate::NotSent };
    if error.is_builder() {
        Outcome::Failed(Failure::Request(error), sent, seen)
    } else if error.is_redirect() {
        Outcome::Failed(Failure::Request(error), Fate::Unknown, seen)
    } else if error.is_connect() {
        Outcome::Failed(Failure::Connect(error), sent, seen)
    } else if error.is_timeout() {
        Outcome::Failed(Failure::TimedOut, Fate::Unknown, seen)
    } else {
        Outcome::Failed(Failure::Broken(error), Fate::Unknown, seen)
    }
}

/// Reads the body into memory and gives back a response that serves it from there. A body over the limit is served
/// from what was read and then from the connection; one that has no end by nature is left alone.
async fn buffer(
    mut response: Response,
    limit: usize,
    seen: &mut Option<Answer>,
) -> reqwest::Result<(Response, Answer)> {
    let answer = |body, response: &Response| Answer::new(response.status(), response.headers().clone(), body);
    *seen = Some(answer(Bytes::new(), &response));
    if is_endless(&response) || is_longer_than(&response, limit) {
        let unread = answer(Bytes::new(), &response);
        return Ok((response, unread));
    }
    let mut read = BytesMut::new();
    while read.len() <= limit {
        match response.chunk().await? {
            Some(chunk) => read.extend_from_slice(&chunk),
            None => {
                let whole = answer(read.freeze(), &response);
                let body = Body::from(whole.body.clone());
                return Ok((with_body(response, |_| body), whole));
            }
        }
    }
    let start = answer(read.freeze(), &response);
    let first = start.body.clone();
    Ok((with_body(response, |rest| Body::wrap(Resumed { first: Some(first), rest })), start))
}

fn is_endless(response: &Response) -> bool {
    let events = response.headers().get(CONTENT_TYPE).is_some_and(|value| value.as_bytes().starts_with(b"text/event"));
    events || response.status() == StatusCode::SWITCHING_PROTOCOLS
}

fn is_longer_than(response: &Response, limit: usize) -> bool {
    let length = response.headers().get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    length.is_some_and(|length| length > limit as u64)
}

/// The same response with another body: status, headers, extensions and URL stay.
fn with_body(response: Response, body: impl FnOnce(Body) -> Body) -> Response {
    let carrier = http::Response::builder().url(response.url().clone()).body(()).expect("an empty response is valid");
    let (mut parts, rest) = http::Response::<Body>::from(response).into_parts();
    parts.extensions.extend(carrier.into_parts().0.extensions);
    Response::from(http::Response::from_parts(parts, body(rest)))
}

/// A body of which the first part was read already.
struct Resumed {
    first: Option<Bytes>,
    rest: Body,
}

impl http_body::Body for Resumed {
    type Data = Bytes;
    type Error = reqwest::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, reqwest::Error>>> {
        match self.first.take() {
            Some(first) => Poll::Ready(Some(Ok(Frame::data(first)))),
            None => Pin::new(&mut self.rest).poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_none() && self.rest.is_end_stream()
    }
}
