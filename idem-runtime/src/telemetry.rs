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
            Error::Unavailable { .. } | Error::OutcomeUnknown { .. } => "unavailable",
            _ => "failed",
        }
    }
}

/// One operation's span and clock.
pub(crate) struct Telemetry {
    handler: &'static str,
    span: tracing::Span,
    started: Instant,
}

impl Telemetry {
    pub(crate) fn start(handler: &'static str, scope: &EncodedScope, key: Option<&IdempotencyKey>) -> Self {
        let span = tracing::info_span!("idempotent", handler, scope = Empty, key = Empty, outcome = Empty);
        if let Ok(scope) = &scope.0 {
            span.record("scope", hex::encode(&sha256(&[scope.as_bytes()])[..8]));
        }
        if let Some(key) = key
            && tracing::enabled!(tracing::Level::DEBUG)
        {
            span.record("key", key.as_str());
        }
        Self { handler, span, started: Instant::now() }
    }

    pub(crate) fn span(&self) -> tracing::Span {
        self.span.clone()
    }

    pub(crate) fn finish(self, answer: Result<Outcome, &Error>) {
        let outcome = answer.map_or_else(Outcome::of_error, Outcome::name);
        self.span.record("outcome", outcome);
        let _entered = self.span.enter();
        if let Err(error) = answer {
            self.log(error);
        }
        self.count(outcome);
    }

    fn log(&self, error: &Error) {
        let handler = self.handler;
        match error {
            Error::MissingKey { .. } | Error::InvalidKey(_) | Error::Mismatch | Error::InFlight { .. } => {
                tracing::debug!(handler, "{error}");
            }
            Error::Unavailable { source, .. } => tracing::warn!(handler, %source, "{error}"),
            Error::OutcomeUnknown { .. } | Error::UnkeyedOutcomeUnknown => tracing::warn!(handler, "{error}"),
            Error::Database(source) => tracing::error!(handler, %source, "{error}"),
            _ => tracing::error!(handler, "{error}"),
        }
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
