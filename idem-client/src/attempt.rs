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
use reqwest::{Body, Request, Response, ResponseBuilderExt as _, Url};
use reqwest_middleware::Next;
use tokio::time::Instant;

use crate::classify::{Answer, Fate};
use crate::edge::{self, Passage};
use crate::error::{Error, Failure};
use crate::layer::Settings;
use crate::redirect;

/// So much of an answer that is no success is read for its classification, even where nothing is to be buffered.
const LEAST_FOR_JUDGING: usize = 16 * 1024;

/// What came of an attempt.
pub(crate) enum Outcome {
    /// An answer, whatever its status, with its body as far as it is buffered. `lost_one` says that it is not the
    /// answer to every request that went out: a middleware sent more than one and lost one of them, or the answer is
    /// that of the page to which the operation's own pointed.
    Answered { response: Response, answer: Answer, lost_one: bool },
    /// No whole answer. What was seen of it, if anything was.
    Failed(Failure, Fate, Option<Answer>),
}

/// Sends the request once and waits for the answer until `until`.
pub(crate) async fn send(
    request: Request,
    extensions: &mut Extensions,
    next: Next<'_>,
    until: Instant,
    settings: &Settings,
) -> Outcome {
    let (method, url) = (request.method().clone(), request.url().clone());
    let passage = Passage::default();
    extensions.insert(passage.clone());
    let mut seen = None;
    let exchange = async {
        let response = next.run(request, extensions).await?;
        buffer(response, settings, &mut seen).await.map_err(reqwest_middleware::Error::Reqwest)
    };
    let watched = redirect::watch(&method, exchange);
    // What did not pass the edge was not sent; without an edge nobody knows.
    let fate = |otherwise| {
        let nothing_passed = if settings.has_edge { Fate::NotSent } else { otherwise };
        passage.fate().unwrap_or(nothing_passed)
    };
    match tokio::time::timeout_at(until, watched).await {
        Err(_) => Outcome::Failed(Failure::TimedOut, fate(Fate::Unknown), seen),
        Ok((Ok((response, answer)), followed)) => {
            let sent_to = passage.url().unwrap_or(url);
            if !followed.any && !method.is_safe() && was_redirected(&sent_to, response.url()) {
                return Outcome::Failed(Failure::Redirected, Fate::Unknown, Some(answer));
            }
            Outcome::Answered { response, answer, lost_one: passage.has_lost_one() || followed.is_elsewhere }
        }
        Ok((Err(reqwest_middleware::Error::Reqwest(error)), followed)) => {
            let known = fate(edge::fate_of(&error, followed.any));
            Outcome::Failed(failure(error), known, seen)
        }
        Ok((Err(foreign), _)) => match Error::from(foreign) {
            // A second layer below this one.
            Error::Refused(refusal) => Outcome::Failed(Failure::Refused(refusal), fate(Fate::NotSent), seen),
            Error::Other(foreign) => Outcome::Failed(Failure::Middleware(foreign), fate(Fate::Unknown), seen),
            own @ (Error::GaveUp(_) | Error::Unbuilt { .. }) => {
                let foreign = reqwest_middleware::Error::middleware(own);
                Outcome::Failed(Failure::Middleware(foreign), fate(Fate::Unknown), seen)
            }
        },
    }
}

/// Whether the answer comes from elsewhere than where the request went. Answers that a middleware made up have no URL.
fn was_redirected(sent_to: &Url, answered_by: &Url) -> bool {
    let place = |url: &Url| {
        let target = (url.path().to_owned(), url.query().map(str::to_owned));
        (url.host_str().map(str::to_owned), url.port_or_known_default(), target)
    };
    answered_by.host_str() != Some("no.url.provided.local") && place(sent_to) != place(answered_by)
}

fn failure(error: reqwest::Error) -> Failure {
    // The URL may hold secrets in its query; the errors that are shown name it without.
    let error = error.without_url();
    if error.is_builder() || error.is_redirect() {
        Failure::Request(error)
    } else if error.is_connect() {
        Failure::Connect(error)
    } else if error.is_timeout() {
        Failure::TimedOut
    } else {
        Failure::Broken(error)
    }
}

/// Reads the body into memory and gives back a response that serves it from there. A body over the limit is served
/// from what was read and then from the connection; one that has no end by nature is left alone.
async fn buffer(
    mut response: Response,
    settings: &Settings,
    seen: &mut Option<Answer>,
) -> reqwest::Result<(Response, Answer)> {
    let answer = |body: Bytes, response: &Response| {
        let answer = Answer::new(response.status(), response.headers().clone(), body);
        answer.marked_by(settings.replay_header.as_ref())
    };
    *seen = Some(answer(Bytes::new(), &response));
    let succeeded = response.status().is_success();
    let limit = if succeeded { settings.buffer_limit } else { settings.buffer_limit.max(LEAST_FOR_JUDGING) };
    if is_endless(&response) || (succeeded && is_longer_than(&response, limit)) {
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
