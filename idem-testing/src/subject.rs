//! The application under attack, and the request that is sent to it.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::header::{CONTENT_LENGTH, DATE, SET_COOKIE};
use axum::http::{HeaderName, HeaderValue, Request, request};
use sqlx::PgPool;

use crate::external::ExternalCalls;

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
    /// What all keys of this attack begin with: those of another over the same database must differ.
    pub(crate) key_prefix: String,
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
            key_prefix: format!("attack-{:016x}", fastrand::u64(..)),
        }
    }

    /// A key of a trial's own.
    pub(crate) fn key(&self, trial: impl std::fmt::Display) -> String {
        format!("{}-{trial}-{:08x}", self.key_prefix, fastrand::u32(..))
    }

    pub(crate) fn request(&self, key: &str) -> Request<Body> {
        self.request_from(&self.template, key)
    }

    pub(crate) fn request_from(&self, template: &Template<'_>, key: &str) -> Request<Body> {
        match template {
            Template::Fixed(parts, body) => {
                let mut request = Request::from_parts((**parts).clone(), Body::from(body.clone()));
                let value = HeaderValue::from_str(key).expect("the keys of the kit are visible ASCII");
                request.headers_mut().insert(self.key_header.clone(), value);
                request
            }
            Template::Built(build) => build(key),
        }
    }

    /// `POST /orders`
    pub(crate) fn describe(&self) -> String {
        let request = self.request("key");
        format!("{} {}", request.method(), request.uri().path())
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
}
