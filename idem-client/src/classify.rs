//! What an answer, or the lack of one, means: is it final, and may the operation have happened?
//!
//! The two questions are separate. A 429 is worth a retry and certainly did nothing; a connection that broke while
//! the answer was awaited is worth a retry *with the same key* because the operation may have been carried out; a 422
//! will be the same for ever. Everything here is a plain function, so that a client of another protocol (tonic, a
//! queue) can use the table without this crate's HTTP layer: see [`grpc_code`] and [`grpc_name`].
//!
//! | answer | verdict |
//! | --- | --- |
//! | not connected | retry; not sent |
//! | reset, connection closed, time-out, body cut short | retry; may have happened |
//! | 425, 429 | retry; not carried out |
//! | 408, 502, 503, 504 | retry; may have happened |
//! | 409 that means "in flight" | retry; may have happened: it is happening |
//! | everything else, 400, 401, 403, 404, 409, 422 and 500 among it | final |

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, Method, StatusCode};

/// What is known about the operation after an attempt that failed.
///
/// Ordered: of several attempts the greatest fate is the operation's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fate {
    /// The request never left: the connection was not made.
    NotSent,
    /// The server answered that it did not carry the request out.
    Refused,
    /// The request was sent and nobody knows what became of it. It may have happened.
    Unknown,
}

/// Whether an answer is final.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// The answer stands; the same request would get the same one.
    Final,
    /// Another attempt with the same key may do better.
    Retry(Fate),
}

/// Judges an HTTP status. `in_flight` says whether a 409 means that the same key is being worked on right now: see
/// [`in_flight`].
#[must_use]
pub fn status(status: StatusCode, in_flight: bool) -> Verdict {
    match status {
        StatusCode::TOO_MANY_REQUESTS | StatusCode::TOO_EARLY => Verdict::Retry(Fate::Refused),
        StatusCode::REQUEST_TIMEOUT
        | StatusCode::BAD_GATEWAY
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT => Verdict::Retry(Fate::Unknown),
        StatusCode::CONFLICT if in_flight => Verdict::Retry(Fate::Unknown),
        _ => Verdict::Final,
    }
}

/// Whether a 409 means "in flight" and not a conflict of the application's own.
///
/// It does when it carries `Retry-After`; when it is a problem (`application/problem+json`) whose `type` ends in
/// `in-flight`; or when its JSON body says `error.code = "idempotency_key_in_use"`, as Stripe's does.
#[must_use]
pub fn in_flight(headers: &HeaderMap, body: &[u8]) -> bool {
    if headers.contains_key(RETRY_AFTER) {
        return true;
    }
    let json = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).is_some_and(|value| {
        let media_type = value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        media_type == "application/json" || media_type.ends_with("+json")
    });
    if !json {
        return false;
    }
    let Ok(problem) = serde_json::from_slice::<serde_json::Value>(body) else { return false };
    let problem_type = problem["type"].as_str().unwrap_or_default().to_ascii_lowercase().replace('_', "-");
    problem_type.ends_with("in-flight") || problem["error"]["code"] == "idempotency_key_in_use"
}

/// Whether a request may be sent more than once: with a key always, without one only if HTTP itself calls the method
/// idempotent (GET, HEAD, OPTIONS, TRACE, PUT, DELETE). A POST or PATCH without a key is sent once.
#[must_use]
pub fn may_repeat(method: &Method, has_key: bool) -> bool {
    has_key || method.is_idempotent()
}

/// Whether a final answer also settles what became of the operation, so that nothing is left to reconcile.
///
/// `earlier` is the fate of the attempts before it. A 5xx settles nothing. Refusals that are given before the key is
/// looked at (401, 403, 404, 405, 407, 408, 413, 425) say nothing about an earlier attempt of
/// unknown fate.
pub(crate) fn settles(status: StatusCode, earlier: Option<Fate>) -> bool {
    if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS {
        return false;
    }
    let before_the_key = matches!(status.as_u16(), 401 | 403 | 404 | 405 | 407 | 408 | 413 | 425);
    !(before_the_key && earlier == Some(Fate::Unknown))
}

/// Judges a gRPC status code by its number.
///
/// Retried are UNAVAILABLE (14), DEADLINE_EXCEEDED (4: the attempt's time was up, the gRPC form of a time-out), and
/// RESOURCE_EXHAUSTED (8). Everything else is final, INVALID_ARGUMENT (3), PERMISSION_DENIED (7),
/// FAILED_PRECONDITION (9) and INTERNAL (13) among it, and so is ABORTED (10), which asks for a new transaction and
/// not for the same call again. Numbers that gRPC does not define are final.
///
/// As for HTTP, retry a call that changes something only when it carries a key.
///
/// ```
/// use idem_client::classify::{Fate, Verdict, grpc_code};
///
/// # let status_code: i32 = 14;
/// // with tonic: grpc_code(status.code() as i32)
/// assert_eq!(grpc_code(status_code), Verdict::Retry(Fate::Unknown));
/// ```
#[must_use]
pub fn grpc_code(code: i32) -> Verdict {
    match code {
        4 | 14 => Verdict::Retry(Fate::Unknown),
        8 => Verdict::Retry(Fate::Refused),
        _ => Verdict::Final,
    }
}

/// Judges a gRPC status code by its name, as `UNAVAILABLE` or as tonic's `Unavailable`. Unknown names are final.
///
/// ```
/// use idem_client::classify::{Verdict, grpc_code, grpc_name};
///
/// assert_eq!(grpc_name("RESOURCE_EXHAUSTED"), grpc_code(8));
/// assert_eq!(grpc_name("ResourceExhausted"), grpc_code(8));
/// assert_eq!(grpc_name("INVALID_ARGUMENT"), Verdict::Final);
/// ```
#[must_use]
pub fn grpc_name(name: &str) -> Verdict {
    let name: String = name.chars().filter(|&character| character != '_').collect();
    match name.to_ascii_lowercase().as_str() {
        "deadlineexceeded" => grpc_code(4),
        "resourceexhausted" => grpc_code(8),
        "unavailable" => grpc_code(14),
        _ => Verdict::Final,
    }
}

/// An answer that the server gave: what the classification looks at, and what an error shows.
#[derive(Clone)]
#[non_exhaustive]
pub struct Answer {
    /// The status.
    pub status: StatusCode,
    /// The headers.
    pub headers: HeaderMap,
    /// The body, as far as it was read: to its end, or to the limit that the client buffers.
    pub body: Bytes,
}

impl Answer {
    pub(crate) fn new(status: StatusCode, headers: HeaderMap, body: Bytes) -> Self {
        Self { status, headers, body }
    }

    /// The answer's replay marker (`Idempotency-Replayed: true`): the outcome is that of an earlier attempt.
    #[must_use]
    pub fn is_replay(&self) -> bool {
        self.headers.get("idempotency-replayed").is_some_and(|value| value == "true")
    }
}

impl std::fmt::Debug for Answer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Answer")
            .field("status", &self.status)
            .field("body_length", &self.body.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn every_status_has_its_verdict() {
        for code in 100..=599 {
            let expected = match code {
                425 | 429 => Verdict::Retry(Fate::Refused),
                408 | 502..=504 => Verdict::Retry(Fate::Unknown),
                _ => Verdict::Final,
            };
            assert_eq!(status(StatusCode::from_u16(code).unwrap(), false), expected, "{code}");
        }
        assert_eq!(status(StatusCode::CONFLICT, true), Verdict::Retry(Fate::Unknown));
        assert_eq!(status(StatusCode::UNPROCESSABLE_ENTITY, true), Verdict::Final);
    }

    #[test]
    fn every_grpc_code_has_its_verdict() {
        let names = [
            "OK",
            "CANCELLED",
            "UNKNOWN",
            "INVALID_ARGUMENT",
            "DEADLINE_EXCEEDED",
            "NOT_FOUND",
            "ALREADY_EXISTS",
            "PERMISSION_DENIED",
            "RESOURCE_EXHAUSTED",
            "FAILED_PRECONDITION",
            "ABORTED",
            "OUT_OF_RANGE",
            "UNIMPLEMENTED",
            "INTERNAL",
            "UNAVAILABLE",
            "DATA_LOSS",
            "UNAUTHENTICATED",
        ];
        for (code, name) in (0..).zip(names) {
            assert_eq!(grpc_code(code), grpc_name(name), "{name}");
            assert_eq!(grpc_code(code) != Verdict::Final, [4, 8, 14].contains(&code), "{name}");
        }
        assert_eq!((grpc_code(-1), grpc_code(17), grpc_name("SOON")), (Verdict::Final, Verdict::Final, Verdict::Final));
    }

    #[test]
    fn a_conflict_is_in_flight_only_when_it_says_so() {
        let with = |name: http::HeaderName, value: &'static str| {
            HeaderMap::from_iter([(name, HeaderValue::from_static(value))])
        };
        let problem = with(CONTENT_TYPE, "application/problem+json; charset=utf-8");
        assert!(in_flight(&with(RETRY_AFTER, "1"), b""));
        assert!(in_flight(&problem, br#"{"type":"https://idem.example/problems/in-flight"}"#));
        assert!(in_flight(&with(CONTENT_TYPE, "application/json"), br#"{"error":{"code":"idempotency_key_in_use"}}"#));
        assert!(!in_flight(&problem, br#"{"type":"https://shop.example/problems/sold-out"}"#));
        assert!(!in_flight(&problem, b"{\"type\":"));
        assert!(!in_flight(&problem, br#"["in-flight"]"#));
        assert!(!in_flight(&with(CONTENT_TYPE, "text/plain"), br#"{"type":"in-flight"}"#));
    }

    #[test]
    fn keyless_writes_are_never_repeated() {
        for method in [Method::POST, Method::PATCH] {
            assert!(!may_repeat(&method, false) && may_repeat(&method, true));
        }
        for method in [Method::GET, Method::HEAD, Method::PUT, Method::DELETE, Method::OPTIONS] {
            assert!(may_repeat(&method, false));
        }
    }

    #[test]
    fn a_refusal_at_the_door_settles_nothing_about_an_earlier_attempt() {
        assert!(settles(StatusCode::CREATED, Some(Fate::Unknown)));
        assert!(settles(StatusCode::UNPROCESSABLE_ENTITY, Some(Fate::Unknown)));
        assert!(settles(StatusCode::UNAUTHORIZED, Some(Fate::NotSent)));
        assert!(!settles(StatusCode::UNAUTHORIZED, Some(Fate::Unknown)));
        assert!(!settles(StatusCode::INTERNAL_SERVER_ERROR, None));
    }
}
