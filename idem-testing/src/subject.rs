//! The application under attack, and the request that is sent to it.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::header::{CONTENT_LENGTH, DATE, SET_COOKIE};
use axum::http::{HeaderName, HeaderValue, Request, request};
use sqlx::PgPool;

use crate::external::ExternalCalls;
use crate::lane::PATIENCE;

pub(crate) type LocalFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// A function of the user's that takes a pool.
pub(crate) type OverPool<'a, T> = Box<dyn Fn(PgPool) -> LocalFuture<'a, T> + 'a>;

pub(crate) fn over_pool<'a, T>(function: impl AsyncFn(PgPool) -> T + 'a) -> OverPool<'a, T> {
    let function = Rc::new(function);
    Box::new(move |pool| {
        let function = Rc::clone(&function);
        Box::pin(async move { function(pool).await })
    })
}

/// What may be sent to a handler again and again: a request, or a function that makes one for a key.
///
/// A request is sent with its `Idempotency-Key` header replaced by the key of each trial. Where the key travels in the
/// payload, or the payload must differ from key to key, use a closure: `|key: &str| Request::post("/events").body(…)`.
pub trait RequestTemplate<'a> {
    #[doc(hidden)]
    fn into_template(self) -> Template<'a>;
}

/// See [`RequestTemplate`].
#[doc(hidden)]
#[allow(missing_debug_implementations)]
pub enum Template<'a> {
    Fixed(Box<request::Parts>, Bytes),
    Built(Build<'a>),
}

type Build<'a> = Box<dyn Fn(&str) -> Request<Body> + 'a>;

impl<'a> RequestTemplate<'a> for Request<Body> {
    fn into_template(self) -> Template<'a> {
        let (parts, body) = self.into_parts();
        let mut collecting = Box::pin(axum::body::to_bytes(body, usize::MAX));
        match collecting.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(bytes)) => Template::Fixed(Box::new(parts), bytes),
            _ => panic!("the body of a request that is sent again must be in memory; use a closure that makes it"),
        }
    }
}

impl<'a, F: Fn(&str) -> Request<Body> + 'a> RequestTemplate<'a> for F {
    fn into_template(self) -> Template<'a> {
        Template::Built(Box::new(self))
    }
}

pub(crate) struct Subject<'a> {
    pub(crate) app: OverPool<'a, Router>,
    pub(crate) template: Template<'a>,
    pub(crate) effects: Option<OverPool<'a, sqlx::Result<i64>>>,
    pub(crate) before_each: Option<OverPool<'a, sqlx::Result<()>>>,
    pub(crate) external: Option<ExternalCalls>,
    pub(crate) key_header: HeaderName,
    pub(crate) replay_header: HeaderName,
    pub(crate) ignored_headers: Vec<HeaderName>,
    pub(crate) keys: Option<Box<dyn Fn() -> String + 'a>>,
    pub(crate) quotes_keys: bool,
    pub(crate) refuses: bool,
    pub(crate) forgets_refusals: bool,
    pub(crate) connections: Option<u32>,
    /// How long a client keeps trying before a key counts as stuck.
    pub(crate) patience: Duration,
    /// What all keys of this attack begin with: those of another over the same database must differ.
    key_prefix: String,
}

impl<'a> Subject<'a> {
    pub(crate) fn new(app: impl AsyncFn(PgPool) -> Router + 'a, template: impl RequestTemplate<'a>) -> Self {
        Self {
            app: over_pool(app),
            template: template.into_template(),
            effects: None,
            before_each: None,
            external: None,
            key_header: HeaderName::from_static("idempotency-key"),
            replay_header: HeaderName::from_static("idempotency-replayed"),
            // One client's session is not handed out again; the others belong to the transport.
            ignored_headers: vec![SET_COOKIE, DATE, CONTENT_LENGTH],
            keys: None,
            quotes_keys: false,
            refuses: false,
            forgets_refusals: false,
            connections: None,
            patience: PATIENCE,
            key_prefix: format!("attack-{:016x}", fastrand::u64(..)),
        }
    }

    /// A key of a trial's own.
    pub(crate) fn key(&self, trial: impl std::fmt::Display) -> String {
        match &self.keys {
            Some(keys) => keys(),
            None => format!("{}-{trial}-{:08x}", self.key_prefix, fastrand::u32(..)),
        }
    }

    pub(crate) fn request(&self, key: &str) -> Request<Body> {
        self.request_from(&self.template, key)
    }

    pub(crate) fn request_from(&self, template: &Template<'_>, key: &str) -> Request<Body> {
        let mut request = match template {
            Template::Fixed(parts, body) => {
                let mut request = Request::from_parts((**parts).clone(), Body::from(body.clone()));
                let value = HeaderValue::from_str(key).expect("the keys of the kit are visible ASCII");
                request.headers_mut().insert(self.key_header.clone(), value);
                request
            }
            Template::Built(build) => build(key),
        };
        if self.quotes_keys
            && let Some(value) = request.headers_mut().get_mut(&self.key_header)
        {
            let quoted = [b"\"", value.as_bytes(), b"\""].concat();
            *value = HeaderValue::from_bytes(&quoted).expect("quotes are visible ASCII");
        }
        request
    }

    /// `POST /orders`
    pub(crate) fn describe(&self) -> String {
        let request = self.request("key");
        format!("{} {}", request.method(), request.uri().path())
    }

    /// The headers that an answer and its replay need not share.
    pub(crate) fn incomparable(&self) -> Vec<&HeaderName> {
        self.ignored_headers.iter().chain([&self.replay_header]).collect()
    }

    pub(crate) async fn effects(&self, pool: &PgPool) -> i64 {
        match &self.effects {
            Some(count) => count(pool.clone()).await.expect("the effects must be countable"),
            None => 0,
        }
    }

    pub(crate) async fn before_each(&self, pool: &PgPool) {
        if let Some(prepare) = &self.before_each {
            prepare(pool.clone()).await.expect("the preparation of a trial must succeed");
        }
    }

    pub(crate) fn external_calls(&self, key: &str) -> Vec<String> {
        self.external.as_ref().map_or_else(Vec::new, |calls| calls.derived_from(key))
    }
}

/// What both attacks can be told about the application.
macro_rules! settings {
    () => {
        /// Counts the effects of all requests so far, such as the rows of `orders`. The crash matrix must have it; the
        /// contract check judges answers alone without it.
        pub fn effects(mut self, count: impl AsyncFn(PgPool) -> sqlx::Result<i64> + 'a) -> Self {
            self.subject.effects = Some(over_pool(count));
            self
        }

        /// Runs before each trial, past the application and its proxy: to empty a table with a unique constraint that
        /// the fixed body would hit, or to fill the stock up again.
        pub fn before_each(mut self, prepare: impl AsyncFn(PgPool) -> sqlx::Result<()> + 'a) -> Self {
            self.subject.before_each = Some(over_pool(prepare));
            self
        }

        /// Checks the calls to another system that the fake provider records: the same in every trial, and each with
        /// one key, however often it is made. `calls` must be new.
        pub fn external_calls(mut self, calls: &ExternalCalls) -> Self {
            self.subject.external = Some(calls.clone());
            self
        }

        /// The header that carries the key. Default `Idempotency-Key`. If the request does not carry it, because the
        /// key is in its payload, the rules on the header are not checked.
        pub fn key_header(mut self, name: HeaderName) -> Self {
            self.subject.key_header = name;
            self
        }

        /// Makes new keys where they must have a form, such as a UUID's. Default: visible ASCII, about 60 characters.
        pub fn keys(mut self, keys: impl Fn() -> String + 'a) -> Self {
            self.subject.keys = Some(Box::new(keys));
            self
        }

        /// Sends each key as the string of a structured field, `"key"`, as the IETF draft writes it. Default: bare, as
        /// most clients do.
        pub fn quoted_keys(mut self) -> Self {
            self.subject.quotes_keys = true;
            self
        }

        /// The header that marks a replay. Default `Idempotency-Replayed`. Where the first retry carries it, all must;
        /// the IETF draft asks for no mark.
        pub fn replay_header(mut self, name: HeaderName) -> Self {
            self.subject.replay_header = name;
            self
        }

        /// A header that may differ between an answer and its replay: one of a layer outside of the handler, such as a
        /// request's number. `Date`, `Content-Length` and `Set-Cookie` always may.
        pub fn ignore_header(mut self, name: HeaderName) -> Self {
            self.subject.ignored_headers.push(name);
            self
        }

        /// The request is refused (4xx) or fails (5xx), and that is what is under test. Default: it must succeed.
        pub fn refuses(mut self) -> Self {
            self.subject.refuses = true;
            self
        }

        /// A refusal is rolled back and not stored, so that each retry is refused in words of its own.
        pub fn refusals_not_stored(mut self) -> Self {
            self.subject.forgets_refusals = true;
            self
        }

        /// How many connections the pool of the attacked process has: as many as one request holds at once. Default 1;
        /// that a handler needs more is a finding.
        pub fn connections(mut self, connections: u32) -> Self {
            self.subject.connections = Some(connections.max(1));
            self
        }

        /// How long a client retries before a key counts as stuck. Default 30 s. It must exceed the lease of the
        /// application under test.
        pub fn patience(mut self, patience: Duration) -> Self {
            self.subject.patience = patience;
            self
        }
    };
}
pub(crate) use settings;
