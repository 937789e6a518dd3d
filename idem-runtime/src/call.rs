//! What the attribute's expansion calls: a request comes in, its values are bound one by one, and the handler runs.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method};

#[cfg(feature = "axum")]
use crate::completer::Recovered;
use crate::error::Error;
use crate::fingerprint::{Digest, Fingerprint, fingerprint};
use crate::idempotency::Idempotency;
use crate::key::{IdempotencyKey, InvalidKey};
use crate::lifecycle::claim::Claim;
use crate::operation_id::OperationId;
use crate::postgres::statements::Isolation;
use crate::resend;
use crate::scope::EncodedScope;
use crate::telemetry::Telemetry;

/// What the claim needs to know of a request or of a function's call.
#[derive(Debug)]
pub struct Call {
    pub(crate) idempotency: Idempotency,
    pub(crate) method: Method,
    pub(crate) path_and_query: String,
    /// The headers that a request sent again by the completer carries.
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    pub(crate) key: Result<Option<IdempotencyKey>, InvalidKey>,
    /// The completer sends the request again.
    #[cfg(feature = "axum")]
    pub(crate) recovered: Option<Recovered>,
}

impl Call {
    /// A function's call: there is no request, and `key = …` brings the key.
    #[must_use]
    pub fn function(idempotency: &Idempotency) -> Self {
        let path_and_query = String::new();
        Self {
            idempotency: idempotency.clone(),
            method: Method::default(),
            path_and_query,
            headers: Vec::new(),
            key: Ok(None),
            #[cfg(feature = "axum")]
            recovered: None,
        }
    }

    /// Names the handler and how long its outcomes are replayed.
    #[must_use]
    pub fn handler(self, name: &'static str, ttl: Duration) -> Request {
        Request {
            lease: self.idempotency.settings().lease,
            call: self,
            handler: name,
            ttl,
            scope: EncodedScope::global(),
            optional: false,
            fingerprint: None,
            body: Bytes::new(),
            is_whole: true,
            replay_failures: false,
            isolation: None,
            wait: None,
        }
    }
}

/// A request with all that its handler's attribute says about it.
#[derive(Debug)]
pub struct Request {
    pub(crate) call: Call,
    pub(crate) handler: &'static str,
    ttl: Duration,
    scope: EncodedScope,
    optional: bool,
    fingerprint: Option<Fingerprint>,
    body: Bytes,
    #[cfg_attr(not(feature = "axum"), expect(dead_code, reason = "a function has no body"))]
    pub(crate) is_whole: bool,
    pub(crate) replay_failures: bool,
    pub(crate) lease: Duration,
    pub(crate) isolation: Option<Isolation>,
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
    pub fn request(mut self, digest: Digest) -> Self {
        self.fingerprint = Some(self.fingerprint_of(&self.call.path_and_query, b"body", &digest.hash));
        self.body = digest.body;
        self.is_whole = digest.is_whole;
        self
    }

    /// `fingerprint = …` takes the payload's place, the query's included. Which operation it is for counts all the same: a refund must
    /// not be answered with a charge's response.
    #[must_use]
    pub fn fingerprint(mut self, hash: [u8; 32]) -> Self {
        let path = self.call.path_and_query.split('?').next().unwrap_or_default();
        self.fingerprint = Some(self.fingerprint_of(path, b"value", &hash));
        self
    }

    fn fingerprint_of(&self, target: &str, kind: &[u8], hash: &[u8]) -> Fingerprint {
        fingerprint(&[self.handler.as_bytes(), self.call.method.as_str().as_bytes(), target.as_bytes(), kind, hash])
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

    pub(crate) fn telemetry(&self) -> Telemetry {
        Telemetry::start(self.handler, &self.scope, self.call.key.as_ref().ok().and_then(Option::as_ref))
    }

    /// Whether the key is optional and there is none.
    #[cfg(feature = "axum")]
    pub(crate) fn is_unkeyed(&self) -> bool {
        self.optional && matches!(self.call.key, Ok(None))
    }

    /// The claim that this request makes.
    pub(crate) fn claim(self, resendable: bool, of_steps: bool) -> Result<Claim, Error> {
        let scope = self.scope.0.map_err(|problem| Error::InvalidScope { problem })?;
        #[cfg(feature = "axum")]
        if let Some(recovered) = &self.call.recovered {
            recovered.check(&scope)?;
        }
        let Call { idempotency, method, path_and_query, headers, key, .. } = self.call;
        let key = key?.ok_or_else(|| Error::MissingKey { header: idempotency.settings().header.clone() })?;
        let request =
            if resendable { resend::encode(&method, &path_and_query, &headers, &self.body) } else { Bytes::new() };
        let id = OperationId { scope: scope.into(), key: key.as_str().into() };
        let namespace = idempotency.statements().namespace();
        Ok(Claim {
            handler: self.handler,
            lock: idempotency.statements().lock_number(&id),
            key: key.within(namespace, &id.scope),
            id,
            fingerprint: self.fingerprint.unwrap_or_else(|| fingerprint_of_function(self.handler)),
            ttl: self.ttl,
            lease: self.lease,
            isolation: self.isolation,
            wait: self.wait,
            request,
            of_steps,
            idempotency,
        })
    }
}

/// A function has no request. Its full path is its fingerprint: another function with the same scope and key, of the same name in
/// another module too, must not be answered with its result.
fn fingerprint_of_function(path: &str) -> Fingerprint {
    fingerprint(&[b"function", path.as_bytes()])
}
