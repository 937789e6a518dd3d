//! What a send can end with, other than an answer.
//!
//! "It failed" is not enough when money is concerned. [`GaveUp`] says the state of the world: which key, how often it
//! was sent at least, the last answer, whether the operation may have happened, and where to ask.

use std::fmt;
use std::time::Duration;

use http::{Method, StatusCode};
use reqwest::Url;

use crate::classify::{Answer, Fate};
use crate::journal::JournalError;
use crate::key::{InvalidKey, Key};
use crate::limits::SettingError;

/// Why a send did not end with an answer.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// Attempts were made, or were due, and none of them got a final answer. Says what is known and what to ask.
    GaveUp(Box<GaveUp>),
    /// Refused before the first attempt: nothing was sent, and nothing is on the journal from before.
    Refused(Refusal),
    /// The request could not be built (a header or a body that is none), so nothing was sent.
    Unbuilt {
        /// What is wrong with it.
        error: reqwest::Error,
        /// An earlier request with its key may have been carried out.
        may_have_happened: bool,
    },
    /// Neither: a middleware above the layer failed.
    Other(reqwest_middleware::Error),
}

impl Error {
    /// Whether the operation may have happened. `false` is certain, as far as this client and its journal know: no
    /// attempt was carried out. `true` means: ask, or send the same request with the same key again; never send it with
    /// a new key.
    ///
    /// It agrees with the journal: an operation with a key of which this is `true` stays on
    /// [`pending`](crate::Layer::pending), and one of which it is `false` is not on it.
    #[must_use]
    pub fn may_have_happened(&self) -> bool {
        match self {
            Self::GaveUp(gave_up) => gave_up.may_have_happened(),
            Self::Refused(_) => false,
            Self::Unbuilt { may_have_happened, .. } => *may_have_happened,
            // A middleware above the layer may fail before and after it.
            Self::Other(reqwest_middleware::Error::Reqwest(error)) => !error.is_builder(),
            Self::Other(reqwest_middleware::Error::Middleware(_)) => true,
        }
    }

    /// The error of giving up, if it is one.
    #[must_use]
    pub fn gave_up(&self) -> Option<&GaveUp> {
        match self {
            Self::GaveUp(gave_up) => Some(gave_up),
            _ => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::GaveUp(gave_up) => gave_up.fmt(formatter),
            Self::Refused(refusal) => refusal.fmt(formatter),
            Self::Unbuilt { error, may_have_happened } => {
                write!(formatter, "the request could not be built: {error}")?;
                let earlier = "; an earlier one with its key may have happened";
                formatter.write_str(if *may_have_happened { earlier } else { "" })
            }
            Self::Other(error) => error.fmt(formatter),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::GaveUp(gave_up) => gave_up.source(),
            Self::Refused(refusal) => refusal.source(),
            Self::Unbuilt { error, .. } => error.source(),
            Self::Other(error) => error.source(),
        }
    }
}

/// Gives the layer's own error back when it comes out of a middleware stack.
impl From<reqwest_middleware::Error> for Error {
    fn from(error: reqwest_middleware::Error) -> Self {
        match error {
            reqwest_middleware::Error::Middleware(inner) => match inner.downcast::<Self>() {
                Ok(own) => own,
                Err(foreign) => Self::Other(reqwest_middleware::Error::Middleware(foreign)),
            },
            other => Self::Other(other),
        }
    }
}

impl From<reqwest::Error> for Error {
    fn from(error: reqwest::Error) -> Self {
        Self::Other(error.into())
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// Why a request was refused before the first attempt. Nothing was sent.
#[derive(Debug)]
#[non_exhaustive]
pub enum Refusal {
    /// The body is a stream and cannot be sent twice.
    StreamingBody,
    /// The body could not be read, or made.
    Body(std::io::Error),
    /// The key header holds no key, or the request has two of them, or another one than the one it was given.
    Key(KeyProblem),
    /// The request's overrides are out of range.
    Setting(SettingError),
    /// The layer is in the middleware stack twice.
    InstalledTwice,
    /// The journal could not record the operation, so it was not begun.
    Journal(JournalError),
}

/// What is wrong with a request's key.
#[derive(Debug)]
#[non_exhaustive]
pub enum KeyProblem {
    /// It is not a key.
    Invalid(InvalidKey),
    /// The header is there more than once.
    Repeated,
    /// The header and the request's own key differ.
    Conflict,
}

impl fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::StreamingBody => formatter.write_str(
                "a body that is sent more than once must be in memory or a `ReplayableBody`; use bytes or text instead of \
                 a stream, `ReplayableBody::file(…)` for a file, or `attempts(1)` to send it once",
            ),
            Self::Body(problem) => write!(formatter, "the body could not be read: {problem}"),
            Self::Key(KeyProblem::Invalid(problem)) => problem.fmt(formatter),
            Self::Key(KeyProblem::Repeated) => {
                formatter.write_str("a request must have one idempotency key; remove the second header line")
            }
            Self::Key(KeyProblem::Conflict) => formatter
                .write_str("a request must have one idempotency key; its header and `key(…)` differ, use one of them"),
            Self::Setting(problem) => problem.fmt(formatter),
            Self::InstalledTwice => formatter.write_str(
                "the retry layer must be installed once; two of them would multiply their attempts, remove one",
            ),
            Self::Journal(problem) => write!(formatter, "the operation was not begun: {problem}"),
        }
    }
}

impl std::error::Error for Refusal {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Journal(problem) => problem.source(),
            Self::Body(problem) => Some(problem),
            _ => None,
        }
    }
}

/// Why the client stopped trying.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// All attempts were used up.
    AttemptsSpent,
    /// The deadline passed, or the next attempt would have come after it.
    DeadlinePassed,
    /// The server asked to wait longer than the deadline allows.
    RetryAfter(Duration),
    /// The client's retry budget is spent.
    BudgetSpent,
    /// The breaker of this host is open.
    BreakerOpen,
    /// The request is a POST or PATCH without a key, so it is sent once.
    NoKey,
    /// The failure is one that another attempt would not change.
    Hopeless,
    /// A middleware below the layer failed.
    Middleware,
    /// The server does not know what the operation did (`effects-unknown`), and runs nothing more under this key until a
    /// person frees it.
    EffectsUnknown,
    /// The HTTP client followed a redirect on its own, so that the answer may be that of another request.
    Redirected,
    /// This request was refused before it was sent; an earlier one with its key is on the journal.
    Refused,
}

impl Reason {
    /// One word for metrics.
    #[cfg(feature = "metrics")]
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::AttemptsSpent => "attempts_spent",
            Self::DeadlinePassed => "deadline_passed",
            Self::RetryAfter(_) => "retry_after",
            Self::BudgetSpent => "budget_spent",
            Self::BreakerOpen => "breaker_open",
            Self::NoKey => "no_key",
            Self::Hopeless => "hopeless",
            Self::Middleware => "middleware",
            Self::EffectsUnknown => "effects_unknown",
            Self::Redirected => "redirected",
            Self::Refused => "refused",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AttemptsSpent => formatter.write_str("all attempts are used up"),
            Self::DeadlinePassed => formatter.write_str("the deadline leaves no time for another attempt"),
            Self::RetryAfter(wait) => {
                write!(formatter, "the server asks to wait {wait:?}, which is past the deadline")
            }
            Self::BudgetSpent => formatter.write_str("the retry budget is spent"),
            Self::BreakerOpen => formatter.write_str("the host keeps failing and its breaker is open"),
            Self::NoKey => formatter.write_str("without a key it cannot be sent again"),
            Self::Hopeless => formatter.write_str("another attempt would fail the same way"),
            Self::Middleware => formatter.write_str("a middleware below the retry layer failed"),
            Self::EffectsUnknown => formatter.write_str("the server does not know what the operation did"),
            Self::Redirected => formatter.write_str(
                "the HTTP client followed a redirect by itself, which turns a POST into a GET; it must have \
                 `redirect_policy()` (or, if a middleware changes the URL, put `NetworkEdge` below it)",
            ),
            Self::Refused => formatter.write_str("this request was refused before it was sent"),
        }
    }
}

/// The state of the world when the client stopped trying.
///
/// The text (`Display`) names the key, so that a person who reads it can ask the server, but neither bodies, headers,
/// nor the query of the URL.
#[derive(Debug)]
pub struct GaveUp {
    pub(crate) operation: String,
    pub(crate) method: Method,
    pub(crate) url: Url,
    pub(crate) key: Option<Key>,
    pub(crate) reason: Reason,
    pub(crate) attempts: u32,
    pub(crate) elapsed: Duration,
    pub(crate) fate: Fate,
    /// What an earlier or another request with the key did is not known.
    pub(crate) others_unknown: bool,
    pub(crate) last_answer: Option<Answer>,
    pub(crate) last_failure: Option<Failure>,
    pub(crate) status_url: Option<Url>,
}

impl GaveUp {
    /// The operation's name: the one it was given, else the one its key was derived from, else method and path.
    #[must_use]
    pub fn operation(&self) -> &str {
        &self.operation
    }

    /// The key that went with every attempt.
    #[must_use]
    pub fn key(&self) -> Option<&Key> {
        self.key.as_ref()
    }

    /// Why the client stopped.
    #[must_use]
    pub fn reason(&self) -> Reason {
        self.reason
    }

    /// How often the request was sent, at least: a redirect, or a proxy on the way, may have multiplied it. Attempts
    /// that made no connection count.
    #[must_use]
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// How long the client tried.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.elapsed
    }

    /// Whether the operation may have happened. `false` is certain: no attempt was carried out. `true` means: ask,
    /// or send the same request with the same key again; never send it with a new key. With [`Reason::EffectsUnknown`]
    /// sending it again does not help either: a person must look.
    #[must_use]
    pub fn may_have_happened(&self) -> bool {
        self.others_unknown || self.fate == Fate::Unknown
    }

    /// The last answer that the server gave on any attempt, if it gave one.
    #[must_use]
    pub fn last_answer(&self) -> Option<&Answer> {
        self.last_answer.as_ref()
    }

    /// The status of [`Self::last_answer`].
    #[must_use]
    pub fn last_status(&self) -> Option<StatusCode> {
        self.last_answer.as_ref().map(|answer| answer.status)
    }

    /// The last failure to get an answer, if an attempt failed so.
    #[must_use]
    pub fn last_failure(&self) -> Option<&Failure> {
        self.last_failure.as_ref()
    }

    /// Where to ask what became of the key, if the client was told (`Builder::status_url`).
    #[must_use]
    pub fn status_url(&self) -> Option<&Url> {
        self.status_url.as_ref()
    }

    fn write_that_a_person_must_look(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(
            "and sending it again will not tell: a person must look at the server's effects and free the key",
        )?;
        self.status_url.as_ref().map_or(Ok(()), |url| write!(formatter, " (`GET {url}`)"))
    }

    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.last_failure.as_ref().map(|failure| failure as _)
    }
}

impl fmt::Display for GaveUp {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "gave up on `{}` ({} {}): {}", self.operation, self.method, self.url, self.reason)?;
        match &self.key {
            Some(key) => write!(formatter, "; key `{key}`")?,
            None => formatter.write_str("; no key")?,
        }
        match self.attempts {
            0 => formatter.write_str(", never sent")?,
            times if self.fate == Fate::NotSent => {
                write!(formatter, ", tried {times} times in {:.1?} and never sent", self.elapsed)?;
            }
            1 => write!(formatter, ", sent at least once in {:.1?}", self.elapsed)?,
            times => write!(formatter, ", sent at least {times} times in {:.1?}", self.elapsed)?,
        }
        match (&self.last_answer, &self.last_failure) {
            (Some(answer), _) => write!(formatter, "; the last answer was {}", answer.status)?,
            (None, Some(failure)) => write!(formatter, "; no answer, {failure}")?,
            (None, None) => {}
        }
        if !self.may_have_happened() {
            return formatter.write_str("; it has not happened");
        }
        formatter.write_str("; it may have happened, ")?;
        if self.reason == Reason::EffectsUnknown {
            return self.write_that_a_person_must_look(formatter);
        }
        match (&self.status_url, &self.key) {
            (Some(url), _) => write!(formatter, "ask `GET {url}` or send it again with the same key"),
            (None, Some(_)) => formatter.write_str("ask the server or send it again with the same key"),
            (None, None) if self.method.is_idempotent() => formatter.write_str("ask the server or send it again"),
            (None, None) => formatter.write_str("ask the server; sending it again may do it twice"),
        }
    }
}

impl std::error::Error for GaveUp {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source()
    }
}

/// How an attempt failed to get an answer.
#[derive(Debug)]
#[non_exhaustive]
pub enum Failure {
    /// The attempt's time was up.
    TimedOut,
    /// No connection was made: the request was not sent.
    Connect(reqwest::Error),
    /// The connection broke before the answer was complete.
    Broken(reqwest::Error),
    /// The request or its redirects are at fault.
    Request(reqwest::Error),
    /// A middleware below the layer failed. What it had sent by then is part of
    /// [`GaveUp::may_have_happened`].
    Middleware(reqwest_middleware::Error),
    /// The HTTP client followed a redirect on its own: a POST may have become a GET.
    Redirected,
    /// The request was refused before it was sent.
    Refused(Refusal),
}

impl Failure {
    /// One word for events and metrics.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::TimedOut => "timed_out",
            Self::Connect(_) => "not_connected",
            Self::Broken(_) => "broken",
            Self::Request(_) => "request",
            Self::Middleware(_) => "middleware",
            Self::Redirected => "redirected",
            Self::Refused(_) => "refused",
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::TimedOut => "the attempt's time was up",
            Self::Connect(_) => "no connection was made",
            Self::Broken(_) => "the connection broke before the answer was complete",
            Self::Request(_) => "the request could not be sent as it is",
            Self::Middleware(_) => "a middleware failed",
            Self::Redirected => "the HTTP client followed a redirect by itself",
            Self::Refused(refusal) => return refusal.fmt(formatter),
        })
    }
}

impl std::error::Error for Failure {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::TimedOut | Self::Redirected => None,
            Self::Connect(error) | Self::Broken(error) | Self::Request(error) => Some(error),
            Self::Middleware(error) => Some(error),
            Self::Refused(refusal) => refusal.source(),
        }
    }
}
