//! What the attribute's expansion calls: a request comes in, the values are bound one by one, and the handler runs.

use std::pin::Pin;
use std::time::Duration;

use axum::extract::{FromRef, FromRequestParts, OriginalUri};
use axum::response::Response;
use http::request::Parts;
use http::{HeaderValue, Method};
use tracing::Instrument;

use crate::claim::Claim;
use crate::error::Error;
use crate::execution::{self, Answer, Execution};
use crate::fingerprint::{Digest, Fingerprint, fingerprint_of_request};
use crate::idempotency::Idempotency;
use crate::key::{IdempotencyKey, InvalidKey};
use crate::registry::OperationId;
use crate::scope::EncodedScope;
use crate::statements::Isolation;
use crate::telemetry::Telemetry;
use crate::transaction::Tx;

/// The future of a handler over its transaction.
pub(crate) type HandlerFuture<'a> = Pin<Box<dyn Future<Output = Response> + Send + 'a>>;

/// The parts of a request that the claim needs. It never rejects: who asks is settled before which key is sent.
#[derive(Debug)]
pub struct Call {
    idempotency: Idempotency,
    method: Method,
    path_and_query: String,
    key: Result<Option<IdempotencyKey>, InvalidKey>,
}

impl<S> FromRequestParts<S> for Call
where
    S: Send + Sync,
    Idempotency: FromRef<S>,
{
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Self::Rejection> {
        let idempotency = Idempotency::from_ref(state);
        // `nest` rewrites the URI that handlers see.
        let uri = parts.extensions.get::<OriginalUri>().map_or(&parts.uri, |original| &original.0);
        let path_and_query = uri.path_and_query().map_or_else(String::new, ToString::to_string);
        let mut values = parts.headers.get_all(&idempotency.settings().header).iter();
        let key = parse_key(values.next(), values.next());
        Ok(Self { method: parts.method.clone(), path_and_query, key, idempotency })
    }
}

fn parse_key(first: Option<&HeaderValue>, second: Option<&HeaderValue>) -> Result<Option<IdempotencyKey>, InvalidKey> {
    match (first, second) {
        (_, Some(_)) => Err(InvalidKey("must come in one header line")),
        (Some(value), None) => IdempotencyKey::from_header(value).map(Some),
        (None, None) => Ok(None),
    }
}

impl Call {
    /// Names the handler and how long its outcomes are replayed.
    #[must_use]
    pub fn handler(self, name: &'static str, ttl: Duration) -> Request {
        let lease = self.idempotency.settings().lease;
        Request {
            call: self,
            handler: name,
            ttl,
            scope: EncodedScope::global(),
            optional: false,
            fingerprint: [0; 32],
            replay_failures: false,
            lease,
            isolation: None,
            wait: None,
        }
    }
}

/// A request with all that its handler's attribute says about it.
#[derive(Debug)]
pub struct Request {
    call: Call,
    handler: &'static str,
    ttl: Duration,
    scope: EncodedScope,
    optional: bool,
    fingerprint: Fingerprint,
    replay_failures: bool,
    lease: Duration,
    isolation: Option<Isolation>,
    wait: Option<Duration>,
}

impl Request {
    /// `scope = …`
    #[must_use]
    pub fn scope(mut self, scope: EncodedScope) -> Self {
        self.scope = scope;
        self
    }

    /// The whole request counts.
    #[must_use]
    pub fn request(mut self, body: Digest) -> Self {
        self.fingerprint = fingerprint_of_request(self.call.method.as_str(), &self.call.path_and_query, body);
        self
    }

    /// `fingerprint = …`
    #[must_use]
    pub fn fingerprint(mut self, digest: Digest) -> Self {
        self.fingerprint = digest.0;
        self
    }

    /// `key = optional`
    #[must_use]
    pub fn optional_key(mut self) -> Self {
        self.optional = true;
        self
    }

    /// `key = …`
    #[must_use]
    pub fn key(mut self, key: Result<IdempotencyKey, InvalidKey>) -> Self {
        self.call.key = key.map(Some);
        self
    }

    /// `in_flight = "wait …"`
    #[must_use]
    pub fn wait(mut self, limit: Duration) -> Self {
        self.wait = Some(limit);
        self
    }

    /// `failures = "replay"`
    #[must_use]
    pub fn replay_failures(mut self) -> Self {
        self.replay_failures = true;
        self
    }

    /// `lease = …`
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// `isolation = …`
    #[must_use]
    pub fn isolation(mut self, isolation: Isolation) -> Self {
        self.isolation = Some(isolation);
        self
    }

    /// Runs the handler in one transaction with the claim, or answers for it.
    pub async fn transaction<F>(self, handler: F) -> Response
    where
        F: for<'a> FnOnce(&'a mut Tx) -> HandlerFuture<'a> + Send + 'static,
    {
        let idempotency = self.call.idempotency.clone();
        let telemetry =
            Telemetry::start(self.handler, &self.scope, self.call.key.as_ref().ok().and_then(Option::as_ref));
        let answer = self.answer(handler).instrument(telemetry.span()).await;
        telemetry.finish(answer.as_ref().map(|answer| answer.outcome));
        match answer {
            Ok(answer) => answer.response,
            Err(error) => {
                let settings = idempotency.settings();
                error.respond(&settings.problem_base_url, settings.mismatch_status())
            }
        }
    }

    async fn answer<F>(self, handler: F) -> Result<Answer, Error>
    where
        F: for<'a> FnOnce(&'a mut Tx) -> HandlerFuture<'a> + Send + 'static,
    {
        let scope = self.scope.0.map_err(|problem| Error::InvalidScope { problem })?;
        let idempotency = self.call.idempotency;
        match self.call.key? {
            Some(key) => {
                let claim = Claim {
                    idempotency,
                    handler: self.handler,
                    id: OperationId { scope: scope.into(), key: key.as_str().into() },
                    key,
                    fingerprint: self.fingerprint,
                    ttl: self.ttl,
                    lease: self.lease,
                    isolation: self.isolation,
                    wait: self.wait,
                };
                Execution { claim, replay_failures: self.replay_failures }.enter(handler).await
            }
            None if self.optional => execution::unkeyed(idempotency, self.isolation, self.lease, handler).await,
            None => Err(Error::MissingKey { header: idempotency.settings().header.clone() }),
        }
    }
}
