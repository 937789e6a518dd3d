//! What an operator sees of an operation: how it ended, never its key's or its body's text.

use std::time::Instant;

use tracing::field::Empty;

use crate::error::Error;
use crate::fingerprint::sha256;
use crate::hex;
use crate::key::IdempotencyKey;
use crate::scope::EncodedScope;

/// How an operation ended, in the words of the metrics and the spans.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The handler ran and its response is stored.
    Claimed,
    /// The stored response was given again.
    Replayed,
    /// The handler ran and nothing was stored.
    Released,
    /// The handler ran without a key.
    #[cfg(feature = "axum")]
    Unkeyed,
}

impl Outcome {
    fn name(self) -> &'static str {
        match self {
            Self::Claimed => "claimed",
            Self::Replayed => "replayed",
            Self::Released => "released",
            #[cfg(feature = "axum")]
            Self::Unkeyed => "unkeyed",
        }
    }

    fn of_error(error: &Error) -> &'static str {
        match error {
            Error::MissingKey { .. } => "missing_key",
            Error::InvalidKey(_) => "invalid_key",
            Error::Mismatch => "mismatch",
            Error::InFlight { .. } => "in_flight",
            Error::Unavailable { .. } | Error::Interrupted { .. } | Error::OutcomeUnknown { .. } => "unavailable",
            Error::Conflict { .. } => "conflict",
            Error::EffectsUnknown => "effects_unknown",
            Error::Abandoned => "abandoned",
            _ => "failed",
        }
    }
}

/// One operation's span and clock.
pub(crate) struct Telemetry {
    handler: &'static str,
    span: tracing::Span,
    started: Instant,
    recorded: bool,
}

/// What can be told of an answer.
#[cfg(feature = "axum")]
pub(crate) trait Outcomes {
    fn outcome(&self) -> Outcome;
}

impl Telemetry {
    pub(crate) fn start(handler: &'static str, scope: &EncodedScope, key: Option<&IdempotencyKey>) -> Self {
        let span = tracing::info_span!("idempotent", handler, scope = Empty, outcome = Empty);
        if let Ok(scope) = &scope.0 {
            span.record("scope", hex::encode(&sha256(&[scope.as_bytes()])[..8]));
        }
        if let Some(key) = key {
            // An event, and not a field of the span: a layer that listens at `DEBUG` must not put the key into another one's `INFO`.
            span.in_scope(|| tracing::debug!(key = key.as_str(), "the request has this idempotency key"));
        }
        Self { handler, span, started: Instant::now(), recorded: false }
    }

    pub(crate) fn span(&self) -> tracing::Span {
        self.span.clone()
    }

    /// Passes an answer on and tells of it.
    #[cfg(feature = "axum")]
    pub(crate) fn finish<A: Outcomes>(self, answer: Result<A, Error>) -> Result<A, Error> {
        self.record(answer.as_ref().map(Outcomes::outcome));
        answer
    }

    /// The handler panicked: nothing of it is stored.
    pub(crate) fn finish_panicked(self) {
        self.end("panicked", |handler| tracing::error!(handler, "the handler panicked"));
    }

    pub(crate) fn record(self, answer: Result<Outcome, &Error>) {
        let outcome = answer.map_or_else(Outcome::of_error, Outcome::name);
        self.end(outcome, |handler| {
            if let Err(error) = answer {
                log(handler, error);
            }
        });
    }

    fn end(mut self, outcome: &'static str, log: impl FnOnce(&'static str)) {
        self.recorded = true;
        self.span.record("outcome", outcome);
        let _entered = self.span.enter();
        log(self.handler);
        self.count(outcome);
    }

    #[cfg(feature = "metrics")]
    fn count(&self, outcome: &'static str) {
        metrics::counter!("idem_operations_total", "handler" => self.handler, "outcome" => outcome).increment(1);
        metrics::histogram!("idem_operation_duration_seconds", "handler" => self.handler, "outcome" => outcome)
            .record(self.started.elapsed().as_secs_f64());
    }

    #[cfg(not(feature = "metrics"))]
    fn count(&self, outcome: &'static str) {
        tracing::trace!(outcome, elapsed = ?self.started.elapsed(), "operation ended");
    }
}

impl Drop for Telemetry {
    /// Whoever asked is gone before there was anything to tell.
    fn drop(&mut self) {
        if !self.recorded {
            self.span.record("outcome", "abandoned");
            self.count("abandoned");
        }
    }
}

/// Tells of an error in the words and at the level that it deserves.
pub(crate) fn log(handler: &'static str, error: &Error) {
    match error {
        Error::MissingKey { .. }
        | Error::InvalidKey(_)
        | Error::Mismatch
        | Error::InFlight { .. }
        | Error::Abandoned => {
            tracing::debug!(handler, "{error}");
        }
        Error::Conflict { source: Some(source), .. } => tracing::warn!(handler, %source, "{error}"),
        Error::Unavailable { source, .. } => tracing::warn!(handler, %source, "{error}"),
        Error::Conflict { .. }
        | Error::Interrupted { .. }
        | Error::OutcomeUnknown { .. }
        | Error::UnkeyedOutcomeUnknown => tracing::warn!(handler, "{error}"),
        Error::Database(source) => tracing::error!(handler, %source, "{error}"),
        Error::Json(source) => tracing::error!(handler, %source, "{error}"),
        // The ending that found it has told it.
        Error::EffectsUnknown => {}
        _ => tracing::error!(handler, "{error}"),
    }
}
