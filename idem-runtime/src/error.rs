//! Every answer that is not the handler's own says what happened to the operation, in words a client can act on.

use std::fmt;
use std::time::Duration;

use crate::key::InvalidKey;
use crate::postgres::ending::Untidy;
use crate::postgres::sqlstate;

/// Where the published contract stands; each problem's `type` is this and its name.
pub(crate) const PROBLEM_BASE_URL: &str = "https://docs.rs/idem-runtime/latest/idem_runtime/contract/index.html#";

/// Everything that can go wrong around a handler. As a response it is RFC 9457 `application/problem+json`.
///
/// In a handler's own error type, `From<idem_runtime::Error>` lets `?` pass it on.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// 400: the request has no idempotency key where one is required. Nothing ran.
    MissingKey {
        /// The header that must carry it.
        header: http::HeaderName,
    },
    /// 400: the idempotency key is malformed. Nothing ran.
    InvalidKey(InvalidKey),
    /// 422 (settable): the idempotency key was used with another request. Nothing ran.
    Mismatch,
    /// 409: an operation with this key is in flight. Nothing ran; retry after the given time.
    InFlight {
        /// When to ask again.
        retry_after: Duration,
    },
    /// 503: no connection to the database in time, or the server takes no writes. The operation was not completed; retry with the
    /// same key.
    Unavailable {
        /// When to ask again.
        retry_after: Duration,
        /// What the database said, for the log; never part of the answer.
        source: sqlx::Error,
    },
    /// 503: the transaction lost to a concurrent one and was rolled back; retry with the same key.
    Conflict {
        /// When to ask again.
        retry_after: Duration,
        /// What the database said; `None` where it said so to the handler.
        source: Option<sqlx::Error>,
    },
    /// 503: the answer to the commit was lost or not certain, and the outcome could not be read yet; a retry will learn it.
    OutcomeUnknown {
        /// When to ask again.
        retry_after: Duration,
    },
    /// 500: the connection broke around the commit of a request without a key, so its outcome cannot be looked up.
    UnkeyedOutcomeUnknown,
    /// 500: the handler's response cannot be stored, so its writes were rolled back.
    NotStorable(NotStorable),
    /// 500: the handler left its transaction (a helper ran `COMMIT`), so whether its effects were committed is not known.
    ///
    /// It is final: every retry with this key is answered with it and runs nothing, until a person has looked at the data and frees
    /// the key ([`failed_operations`](crate::Idempotency::failed_operations), [`discard_failed`](crate::Idempotency::discard_failed)).
    /// The log names the handler at `ERROR`. Without a key (`key = optional`) there is nothing to store.
    EffectsUnknown,
    /// 500: the handler left its transaction in a state that must not be committed. It was rolled back, and the key is free.
    Untidy(Untidy),
    /// The client hung up before the handler began, so it was not begun. Nobody gets this answer.
    Abandoned,
    /// 409: the lease of a multi-step operation ran out and another attempt has taken it over. This attempt records
    /// nothing more; pass the error on.
    LostClaim,
    /// 500: the steps that the handler asks for are not those that were recorded. Nothing ran: finish the old operations
    /// first, or add steps at the end only.
    StepsChanged {
        /// The recorded step at this place; `None` past the last one.
        recorded: Option<String>,
        /// The step that the handler asked for; `None` at its end.
        asked: Option<String>,
    },
    /// 500: two steps of one operation have the same name, so their derived keys would collide.
    DuplicateStep {
        /// The name.
        name: String,
    },
    /// 500: a part of the operation ended with an error or was dropped, and another one was asked for. A retry could not
    /// come by the same way: return the error, or make it a result (`Ok`), which is recorded.
    StepFailed {
        /// The part that failed.
        name: String,
    },
    /// 503: a part of the operation was interrupted because the database could not be used, so whatever the handler makes of it is no
    /// outcome. The log names the cause; retry with the same key.
    Interrupted {
        /// The part.
        name: String,
        /// When to ask again.
        retry_after: Duration,
    },
    /// 500: a result is no JSON, or the recorded one does not fit its type any more.
    Json(serde_json::Error),
    /// 500: the scope cannot be stored. Nothing ran.
    InvalidScope {
        /// What it must be.
        problem: &'static str,
    },
    /// 500: the database refused a statement of ours or the commit; the transaction was rolled back.
    Database(sqlx::Error),
    /// A setting was refused when it was set.
    Setting {
        /// The builder's method.
        name: &'static str,
        /// What it must be.
        problem: String,
    },
    /// The migrations could not be applied.
    Migrate(sqlx::migrate::MigrateError),
}

/// Why a response cannot be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotStorable {
    /// Its length is unknown before it ends.
    Streaming,
    /// Its body is longer than the limit, in bytes.
    TooLarge {
        /// The limit (`Builder::response_limit`).
        limit: usize,
    },
    /// Reading its body failed.
    Unreadable,
    /// A 1xx response hands the connection over (an upgrade): there is no outcome to store.
    Upgrade,
}

impl fmt::Display for NotStorable {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Streaming => formatter
                .write_str("the response must have a known length to be stored; return it whole, not as a stream"),
            Self::TooLarge { limit } => write!(
                formatter,
                "the response must be at most {limit} bytes long to be stored; return less or raise `response_limit`"
            ),
            Self::Unreadable => formatter.write_str("the response's body failed while it was read"),
            Self::Upgrade => formatter.write_str(
                "a 1xx response hands the connection over and has no outcome to store; upgrade on a route without `#[idempotent]`",
            ),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MissingKey { header } => write!(formatter, "the header `{header}` must carry an idempotency key"),
            Self::InvalidKey(problem) => problem.fmt(formatter),
            Self::Mismatch => formatter.write_str(
                "the idempotency key was used with another request; use a new key for a new operation",
            ),
            Self::InFlight { .. } => formatter.write_str("an operation with this idempotency key is in flight"),
            Self::Unavailable { .. } => formatter.write_str(
                "the database could not be used, so the operation was not completed; send it again with the same idempotency key",
            ),
            Self::Conflict { .. } => formatter.write_str(
                "the operation lost to a concurrent one and was rolled back; send it again with the same idempotency key",
            ),
            Self::OutcomeUnknown { .. } => {
                formatter.write_str("the outcome is not known yet; a retry with the same idempotency key will learn it")
            }
            Self::UnkeyedOutcomeUnknown => formatter.write_str(
                "the outcome is not known; send an idempotency key so that a retry is safe",
            ),
            Self::NotStorable(problem) => problem.fmt(formatter),
            Self::EffectsUnknown => formatter.write_str(
                "it is not known what the operation has changed; it is not repeated under this idempotency key, and a person must look \
                 at it",
            ),
            Self::Untidy(untidy) => untidy.fmt(formatter),
            Self::Abandoned => formatter.write_str("the client hung up before the operation began"),
            Self::LostClaim => formatter.write_str("another attempt has taken this operation over; this one must end"),
            Self::StepsChanged { recorded: None, asked: None } => formatter.write_str(
                "the operation was begun in steps (`op: &mut Operation`); finish it before the handler takes `tx: &mut Tx`",
            ),
            Self::StepsChanged { recorded, asked } => {
                let name = |step: &Option<String>| step.as_ref().map_or("the end".to_owned(), |name| format!("`{name}`"));
                write!(
                    formatter,
                    "the steps must be those recorded, in order: {} was recorded where {} was asked for; finish operations in \
                     progress before a deploy changes their steps, or add steps at the end",
                    name(recorded),
                    name(asked)
                )
            }
            Self::DuplicateStep { name } => {
                write!(formatter, "the step name `{name}` must be used once in an operation; use another name")
            }
            Self::StepFailed { name } => write!(
                formatter,
                "`{name}` failed, so nothing may follow it in this attempt; return its error, or make it a result (`Ok`) to go on"
            ),
            Self::Interrupted { name, .. } => write!(
                formatter,
                "the database could not be used in `{name}`, so the operation was not completed; send it again with the same \
                 idempotency key"
            ),
            Self::Json(_) => formatter.write_str(
                "a recorded result must be JSON that is read back as it was: no NaN, no skipped field without a default",
            ),
            Self::InvalidScope { problem } => write!(formatter, "the scope {problem}"),
            Self::Database(error) if sqlstate::is_not_migrated(error) => formatter.write_str(
                "a table or a function of the schema is missing or of another version; call `migrate()` when the application starts",
            ),
            Self::Database(_) => formatter.write_str("the database refused a statement, and its transaction was rolled back"),
            Self::Setting { name, problem } => write!(formatter, "`{name}` {problem}"),
            Self::Migrate(_) => formatter.write_str("the migrations could not be applied"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::InvalidKey(source) => Some(source),
            Self::Unavailable { source, .. } | Self::Database(source) => Some(source),
            Self::Conflict { source: Some(source), .. } => Some(source),
            Self::Migrate(source) => Some(source),
            Self::Json(source) => Some(source),
            _ => None,
        }
    }
}

impl From<InvalidKey> for Error {
    fn from(problem: InvalidKey) -> Self {
        Self::InvalidKey(problem)
    }
}

impl Error {
    /// When a retry with the same key makes sense; `None` where it does not.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::InFlight { retry_after }
            | Self::Unavailable { retry_after, .. }
            | Self::Conflict { retry_after, .. }
            | Self::Interrupted { retry_after, .. }
            | Self::OutcomeUnknown { retry_after } => Some(*retry_after),
            Self::LostClaim => Some(Duration::from_secs(1)),
            _ => None,
        }
    }
}

#[cfg(feature = "axum")]
mod problem {
    use axum::response::{IntoResponse, Response};
    use http::header::{CONTENT_TYPE, RETRY_AFTER};
    use http::{HeaderValue, StatusCode};
    use serde_json::json;

    use super::{Error, PROBLEM_BASE_URL};

    impl Error {
        /// The problem's name (the end of its `type`), title and status.
        fn problem(&self) -> (&'static str, &'static str, StatusCode) {
            match self {
                Self::MissingKey { .. } => ("key-missing", "Idempotency key missing", StatusCode::BAD_REQUEST),
                Self::InvalidKey(_) => ("key-invalid", "Idempotency key invalid", StatusCode::BAD_REQUEST),
                Self::Mismatch => {
                    ("key-reused", "Idempotency key used with another request", StatusCode::UNPROCESSABLE_ENTITY)
                }
                Self::InFlight { .. } => ("in-flight", "Operation in flight", StatusCode::CONFLICT),
                Self::Unavailable { .. } => ("unavailable", "Database unavailable", StatusCode::SERVICE_UNAVAILABLE),
                Self::Conflict { .. } => {
                    ("unavailable", "Lost to a concurrent operation", StatusCode::SERVICE_UNAVAILABLE)
                }
                Self::Interrupted { .. } => ("unavailable", "Database unavailable", StatusCode::SERVICE_UNAVAILABLE),
                Self::Abandoned => ("unavailable", "Not begun", StatusCode::SERVICE_UNAVAILABLE),
                Self::EffectsUnknown => ("effects-unknown", "Effects unknown", StatusCode::INTERNAL_SERVER_ERROR),
                Self::OutcomeUnknown { .. } => ("outcome-unknown", "Outcome unknown", StatusCode::SERVICE_UNAVAILABLE),
                Self::UnkeyedOutcomeUnknown => {
                    ("outcome-unknown", "Outcome unknown", StatusCode::INTERNAL_SERVER_ERROR)
                }
                Self::NotStorable(_) => {
                    ("response-not-storable", "Response not storable", StatusCode::INTERNAL_SERVER_ERROR)
                }
                Self::LostClaim => ("in-flight", "Operation in flight", StatusCode::CONFLICT),
                Self::Untidy(_)
                | Self::StepsChanged { .. }
                | Self::DuplicateStep { .. }
                | Self::StepFailed { .. }
                | Self::Json(_)
                | Self::InvalidScope { .. }
                | Self::Database(_)
                | Self::Setting { .. }
                | Self::Migrate(_) => ("internal", "Internal error", StatusCode::INTERNAL_SERVER_ERROR),
            }
        }

        /// What the client may know: nothing of the server's insides.
        fn detail(&self) -> String {
            match self.problem() {
                ("internal", ..) => {
                    "the operation failed and was rolled back; one of several steps keeps those that it had finished"
                        .to_owned()
                }
                _ => self.to_string(),
            }
        }

        pub(crate) fn respond(&self, base_url: &str, mismatch_status: StatusCode) -> Response {
            let (name, title, status) = self.problem();
            let status = if matches!(self, Self::Mismatch) { mismatch_status } else { status };
            let problem = json!({
                "type": format!("{base_url}{name}"),
                "title": title,
                "status": status.as_u16(),
                "detail": self.detail(),
            });
            let content_type = HeaderValue::from_static("application/problem+json");
            let mut response = (status, [(CONTENT_TYPE, content_type)], problem.to_string()).into_response();
            if let Some(retry_after) = self.retry_after() {
                // Whole seconds, and never 0: that would invite an immediate retry.
                let seconds = retry_after.as_secs() + u64::from(retry_after.subsec_nanos() > 0);
                response.headers_mut().insert(RETRY_AFTER, seconds.max(1).into());
            }
            response
        }
    }

    impl IntoResponse for Error {
        /// With the default base URL of problem types and 422 for a mismatch.
        fn into_response(self) -> Response {
            self.respond(PROBLEM_BASE_URL, StatusCode::UNPROCESSABLE_ENTITY)
        }
    }
}
