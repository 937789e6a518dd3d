//! A client that retries as the published contract says.

use std::fmt;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderMap, HeaderName, Request, StatusCode};
use tower::ServiceExt;

/// What came of sending a request once.
#[derive(Clone, Debug)]
pub(crate) enum Attempt {
    Answered(Answer),
    TimedOut,
    /// The handler panicked or its task was cancelled: a client sees its connection closed.
    Closed,
}

#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// Which answers end a client's attempts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Finality {
    /// The status of a handler that always fails. It has no better one.
    pub(crate) failure: Option<StatusCode>,
    /// The handler's own outcome is 409; otherwise each 409 says that another attempt is under way.
    pub(crate) refuses_with_conflict: bool,
}

impl Finality {
    pub(crate) fn of(status: StatusCode) -> Self {
        let failure = Some(status).filter(|status| is_transient(*status));
        Self { failure, refuses_with_conflict: status == StatusCode::CONFLICT }
    }
}

fn is_transient(status: StatusCode) -> bool {
    matches!(status.as_u16(), 408 | 425 | 429 | 500..)
}

impl Attempt {
    /// The answer, unless a client must try again.
    pub(crate) fn into_final(self, finality: Finality) -> Option<Answer> {
        match self {
            Self::Answered(answer) if !answer.asks_for_a_retry(finality) => Some(answer),
            _ => None,
        }
    }

    pub(crate) fn answer(&self) -> Option<&Answer> {
        match self {
            Self::Answered(answer) => Some(answer),
            _ => None,
        }
    }
}

impl Answer {
    pub(crate) fn asks_for_a_retry(&self, finality: Finality) -> bool {
        if self.is_effects_unknown() {
            return false;
        }
        if finality.failure == Some(self.status) {
            return false;
        }
        match self.status {
            StatusCode::CONFLICT => !finality.refuses_with_conflict || self.has_retry_after(),
            status => is_transient(status),
        }
    }

    /// The final answer of an operation whose handler's transaction ended behind its back: a person frees the key.
    pub(crate) fn is_effects_unknown(&self) -> bool {
        self.status == StatusCode::INTERNAL_SERVER_ERROR && contains(&self.body, b"#effects-unknown\"")
    }

    pub(crate) fn has_retry_after(&self) -> bool {
        self.headers.contains_key(RETRY_AFTER)
    }

    pub(crate) fn is_replay(&self, replay_header: &HeaderName) -> bool {
        self.headers.get(replay_header).is_some_and(|value| value == "true")
    }

    /// How it differs from another answer to the same operation, if it does.
    pub(crate) fn difference(&self, other: &Answer, ignored: &[&HeaderName]) -> Option<String> {
        if self.status != other.status {
            return Some(format!("status {} and then {}", self.status, other.status));
        }
        if self.body != other.body {
            return Some(format!("body {} and then {}", excerpt(&self.body), excerpt(&other.body)));
        }
        let values = |answer: &Answer, name: &HeaderName| -> Vec<_> {
            answer
                .headers
                .get_all(name)
                .iter()
                .map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
                .collect()
        };
        let mut names = self.headers.keys().chain(other.headers.keys()).filter(|name| !ignored.contains(name));
        let name = names.find(|name| values(self, name) != values(other, name))?;
        Some(format!("header `{name}` {:?} and then {:?}", values(self, name), values(other, name)))
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.status, excerpt(&self.body))
    }
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Answered(answer) => answer.fmt(f),
            Self::TimedOut => f.write_str("no answer in time"),
            Self::Closed => f.write_str("connection closed"),
        }
    }
}

fn excerpt(body: &Bytes) -> String {
    let text = String::from_utf8_lossy(body);
    let short: String = text.chars().take(200).collect();
    if short.len() < text.len() { format!("`{short}…`") } else { format!("`{short}`") }
}

/// Sends a request once. A time-out drops the handler's future, as a server does when its client hangs up.
pub(crate) async fn send(app: &Router, request: Request<Body>, timeout: Duration) -> Attempt {
    let app = app.clone();
    let mut task = tokio::spawn(async move {
        let response = match app.oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        };
        let (parts, body) = response.into_parts();
        let body = axum::body::to_bytes(body, usize::MAX).await.ok()?;
        Some(Answer { status: parts.status, headers: parts.headers, body })
    });
    match tokio::time::timeout(timeout, &mut task).await {
        Ok(Ok(Some(answer))) => Attempt::Answered(answer),
        Ok(_) => Attempt::Closed,
        Err(_) => {
            task.abort();
            Attempt::TimedOut
        }
    }
}

/// Exponential back-off with full jitter. `Retry-After` is whole seconds, which a test has no time for.
#[derive(Debug)]
pub(crate) struct Backoff {
    begin: Instant,
    patience: Duration,
    longest: Duration,
}

impl Backoff {
    pub(crate) fn new(patience: Duration) -> Self {
        Self { begin: Instant::now(), patience, longest: Duration::from_millis(4) }
    }

    /// Waits; false once patience is at its end.
    pub(crate) async fn wait(&mut self) -> bool {
        let longest = self.longest.as_micros() as u64;
        tokio::time::sleep(Duration::from_micros(fastrand::u64(longest / 4..longest))).await;
        self.longest = (self.longest * 2).min(Duration::from_millis(200));
        self.begin.elapsed() < self.patience
    }
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}
