//! What can be seen of the attempts: events, metrics, and a function of the application's.
//!
//! A retry that nobody sees hides that a network or a server is ill. None of the three carries keys, bodies, credentials
//! or queries.

use std::fmt;
use std::time::Duration;

use http::{Method, StatusCode};

use crate::error::Reason;

/// One attempt and what follows it, for [`Builder::on_attempt`](crate::Builder::on_attempt).
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct AttemptReport<'a> {
    /// The operation's name.
    pub operation: &'a str,
    /// The request's method.
    pub method: &'a Method,
    /// Scheme, host and port.
    pub host: &'a str,
    /// The attempt's number. Where the client gives up without another attempt it is that of the last one, or 0.
    pub number: u32,
    /// How long it took.
    pub took: Duration,
    /// The answer's status, if there was a whole answer.
    pub status: Option<StatusCode>,
    /// In a word why there was no answer: `timed_out`, `not_connected`, `broken`, `request`, `middleware`, `redirected`
    /// or `refused`.
    pub failure: Option<&'static str>,
    /// What the client does now.
    pub next: NextStep,
}

/// What a client does after an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NextStep {
    /// It gives the answer to the caller.
    Answer {
        /// Whether the answer tells what became of the operation.
        settled: bool,
    },
    /// It waits and sends again.
    Retry {
        /// How long it waits.
        wait: Duration,
    },
    /// The operation is in flight: it waits and asks again, which uses no attempt up.
    WaitInFlight {
        /// How long it waits.
        wait: Duration,
    },
    /// It gives up.
    GiveUp {
        /// Why.
        reason: Reason,
        /// Whether the operation may have happened.
        may_have_happened: bool,
    },
}

impl AttemptReport<'_> {
    /// Whether there was an attempt since the last report: a breaker or the deadline may have forbidden it.
    fn is_of_an_attempt(&self) -> bool {
        self.status.is_some() || self.failure.is_some()
    }
}

/// A function of the application's that sees each attempt.
pub(crate) type Observer = Box<dyn Fn(&AttemptReport<'_>) + Send + Sync>;

/// How an attempt came out, in a word for events and metrics.
struct Outcome<'a>(&'a AttemptReport<'a>);

impl fmt::Display for Outcome<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0.status, self.0.failure) {
            (Some(status), _) => write!(formatter, "{}", status.as_u16()),
            (None, Some(failure)) => formatter.write_str(failure),
            (None, None) => formatter.write_str("not_sent"),
        }
    }
}

/// Tells of one attempt, or of giving up before there was one.
pub(crate) fn report(report: &AttemptReport<'_>, observer: Option<&Observer>) {
    let &AttemptReport { operation, method, host, number: attempt, took, next, .. } = report;
    let outcome = Outcome(report);
    let took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
    if report.is_of_an_attempt() {
        tracing::debug!(operation, %method, host, attempt, %outcome, took_ms, "attempt");
    }
    let wait_ms = |wait: Duration| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
    match next {
        NextStep::Answer { settled: true } => {}
        NextStep::Answer { settled: false } => {
            tracing::info!(operation, host, attempt, %outcome, "answered, but what became of the operation is not known");
        }
        NextStep::Retry { wait } => {
            tracing::info!(operation, host, attempt, reason = %outcome, wait_ms = wait_ms(wait), "retry");
        }
        NextStep::WaitInFlight { wait } => {
            tracing::info!(operation, host, attempt, reason = "in_flight", wait_ms = wait_ms(wait), "retry");
        }
        NextStep::GiveUp { reason, may_have_happened } => {
            tracing::warn!(operation, host, attempts = attempt, %reason, may_have_happened, last = %outcome, "gave up");
        }
    }
    #[cfg(feature = "metrics")]
    count(report);
    if let Some(observer) = observer {
        observer(report);
    }
}

/// Labels are bounded: a host, a word. The operation's name is none of them, since it may hold a path with an id.
#[cfg(feature = "metrics")]
fn count(report: &AttemptReport<'_>) {
    let host = report.host.to_owned();
    let outcome = Outcome(report).to_string();
    if report.is_of_an_attempt() {
        metrics::counter!("idem_client_attempts_total", "host" => host.clone(), "outcome" => outcome.clone())
            .increment(1);
        metrics::histogram!("idem_client_attempt_duration_seconds", "host" => host.clone())
            .record(report.took.as_secs_f64());
    }
    match report.next {
        NextStep::Answer { settled: true } => {}
        NextStep::Answer { settled: false } => {
            metrics::counter!("idem_client_unsettled_total", "host" => host).increment(1);
        }
        NextStep::Retry { .. } => {
            metrics::counter!("idem_client_retries_total", "host" => host, "reason" => outcome).increment(1);
        }
        NextStep::WaitInFlight { .. } => {
            metrics::counter!("idem_client_retries_total", "host" => host, "reason" => "in_flight").increment(1);
        }
        NextStep::GiveUp { reason, .. } => {
            metrics::counter!("idem_client_given_up_total", "host" => host, "reason" => reason.name()).increment(1);
        }
    }
}
