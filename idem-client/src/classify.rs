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
//! | 409 that means "in flight" | wait, which uses no attempt up; may have happened: it is happening |
//! | a problem whose type ends in `key-reused`, Stripe's `idempotency_error` | final; says nothing about the operation that has the key |
//! | a problem whose type ends in `effects-unknown` | final; may have happened, and a person must look |
//! | everything else, 400, 401, 403, 404, 409, 422 and 500 among it | final |
//!
//! [`standard`] is this table. [`stripe`] and [`aws`] are what the SDKs of those providers retry;
//! [`Builder::classify`](crate::Builder::classify) takes either, or a function of your own.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, RETRY_AFTER};
use http::{HeaderMap, Method, StatusCode};
use serde_json::Value;

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

/// What an answer means for the next attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Verdict {
    /// The answer stands; the same request would get the same one.
    Final,
    /// The answer stands, and it does not tell what became of the operation: ask, or have somebody look.
    Unsettled,
    /// Another attempt with the same key may do better.
    Retry(Fate),
    /// The same key is being worked on right now. Asking again costs time and no attempt.
    InFlight,
    /// The key belongs to another request. The answer stands, and says nothing about the operation that has the key.
    Mismatch,
    /// The server does not know what its operation did, and runs nothing more under the key until a person frees it.
    EffectsUnknown,
}

impl Verdict {
    /// Whether the answer is the caller's, and not a reason to send again.
    #[must_use]
    pub fn is_final(self) -> bool {
        !matches!(self, Self::Retry(_) | Self::InFlight)
    }
}

/// Judges an HTTP status alone. `in_flight` says whether a 409 means that the same key is being worked on right now: see
/// [`in_flight`].
#[must_use]
pub fn status(status: StatusCode, in_flight: bool) -> Verdict {
    match status {
        StatusCode::TOO_MANY_REQUESTS | StatusCode::TOO_EARLY => Verdict::Retry(Fate::Refused),
        StatusCode::REQUEST_TIMEOUT
        | StatusCode::BAD_GATEWAY
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT => Verdict::Retry(Fate::Unknown),
        StatusCode::CONFLICT if in_flight => Verdict::InFlight,
        _ => Verdict::Final,
    }
}

/// Judges an answer as the table above does: the default of [`Builder::classify`](crate::Builder::classify).
#[must_use]
pub fn standard(answer: &Answer) -> Verdict {
    let problem = Problem::of(answer);
    match problem.about_the_key() {
        Some(verdict) => verdict,
        None => status(answer.status, answer.status == StatusCode::CONFLICT && problem.in_flight(&answer.headers)),
    }
}

/// Judges an answer as Stripe's SDKs do.
///
/// `Stripe-Should-Retry` decides, both ways. Without it 409 and every 5xx are sent again, and nothing else, 429 not
/// among it. A 5xx that is a replay comes again for ever and does not tell what happened, so it is final and unsettled.
///
/// Source: `_shouldRetry` of stripe-node 23 and `_should_retry` of stripe-python 16.
#[must_use]
pub fn stripe(answer: &Answer) -> Verdict {
    let problem = Problem::of(answer);
    if let Some(verdict) = problem.about_the_key() {
        return verdict;
    }
    let server_error = answer.status.is_server_error();
    let fate = match answer.status {
        StatusCode::TOO_MANY_REQUESTS => Fate::Refused,
        _ => Fate::Unknown,
    };
    match answer.headers.get("stripe-should-retry").map(http::HeaderValue::as_bytes) {
        Some(b"true") if answer.status == StatusCode::CONFLICT && problem.in_flight(&answer.headers) => {
            Verdict::InFlight
        }
        Some(b"true") => Verdict::Retry(fate),
        Some(b"false") if server_error => Verdict::Unsettled,
        Some(b"false") => Verdict::Final,
        _ if server_error && answer.is_replay() => Verdict::Unsettled,
        _ if server_error => Verdict::Retry(Fate::Unknown),
        _ if answer.status == StatusCode::CONFLICT && problem.in_flight(&answer.headers) => Verdict::InFlight,
        _ if answer.status == StatusCode::CONFLICT => Verdict::Retry(Fate::Unknown),
        _ => Verdict::Final,
    }
}

/// The error codes with which AWS throttles: botocore's `standard` mode and Smithy's.
const AWS_THROTTLING: [&str; 12] = [
    "BandwidthLimitExceeded",
    "EC2ThrottledException",
    "LimitExceededException",
    "ProvisionedThroughputExceededException",
    "RequestLimitExceeded",
    "RequestThrottled",
    "RequestThrottledException",
    "SlowDown",
    "ThrottledException",
    "Throttling",
    "ThrottlingException",
    "TooManyRequestsException",
];

/// Judges an answer as AWS's SDKs do in their standard mode.
///
/// Sent again are throttling by its code at whatever status (`ThrottlingException` is a 400), 429, the time-outs
/// `RequestTimeout` and `RequestTimeoutException`, and 500, 502, 503, 504. `TransactionInProgressException` and
/// `PriorRequestNotComplete` are waited for as in flight; `IdempotentParameterMismatch` and its like are a key that was
/// used with another request. The code is read from `x-amzn-errortype`, from the JSON members `__type` and `code`, and
/// from the XML element `Code`.
///
/// Source: `retries/standard.py` of botocore 1.40 and the retry constants of `@smithy/core`.
#[must_use]
pub fn aws(answer: &Answer) -> Verdict {
    let problem = Problem::of(answer);
    if let Some(verdict) = problem.about_the_key() {
        return verdict;
    }
    let code = aws_code(answer, &problem).unwrap_or_default();
    match code.as_str() {
        "TransactionInProgressException" | "PriorRequestNotComplete" => Verdict::InFlight,
        "IdempotentParameterMismatch"
        | "IdempotentParameterMismatchException"
        | "IdempotencyParameterMismatchException" => Verdict::Mismatch,
        "RequestTimeout" | "RequestTimeoutException" => Verdict::Retry(Fate::Unknown),
        throttling if AWS_THROTTLING.contains(&throttling) => Verdict::Retry(Fate::Refused),
        _ => match answer.status.as_u16() {
            429 => Verdict::Retry(Fate::Refused),
            500 | 502 | 503 | 504 => Verdict::Retry(Fate::Unknown),
            _ => Verdict::Final,
        },
    }
}

/// `com.amazonaws.dynamodb.v20120810#ThrottlingException:http://…` is `ThrottlingException`.
fn aws_code(answer: &Answer, problem: &Problem) -> Option<String> {
    let header = answer.headers.get("x-amzn-errortype").and_then(|value| value.to_str().ok()).map(str::to_owned);
    let json = || {
        let said = problem.said.as_ref()?;
        ["__type", "code", "Code"].into_iter().find_map(|name| said[name].as_str().map(str::to_owned))
    };
    let xml = || {
        let text = String::from_utf8_lossy(&answer.body);
        let rest = text.split_once("<Code>")?.1;
        Some(rest.split_once("</Code>")?.0.trim().to_owned())
    };
    let code = header.or_else(json).or_else(xml)?;
    let code = code.split(':').next().unwrap_or_default();
    Some(code.rsplit('#').next().unwrap_or_default().to_owned())
}

/// An answer's JSON body, if it has one.
struct Problem {
    said: Option<Value>,
    /// The answer says that its body is JSON.
    is_declared: bool,
}

impl Problem {
    fn of(answer: &Answer) -> Self {
        // What succeeded is no problem, and parsing it would cost for nothing.
        if answer.status.is_success() {
            return Self { said: None, is_declared: false };
        }
        Self::read(&answer.headers, &answer.body)
    }

    fn read(headers: &HeaderMap, body: &[u8]) -> Self {
        let is_declared = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).is_some_and(|value| {
            let media_type = value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
            media_type == "application/json" || media_type.ends_with("+json")
        });
        Self { said: serde_json::from_slice(body).ok(), is_declared }
    }

    /// The end of a problem's `type`: the last word of the URL, after `#` or `/`.
    fn has_type(&self, name: &str) -> bool {
        let problem_type = self.said.as_ref().and_then(|problem| problem["type"].as_str()).unwrap_or_default();
        problem_type.trim_end_matches('/').to_ascii_lowercase().replace('_', "-").ends_with(name)
    }

    fn error(&self, member: &str) -> &str {
        self.said.as_ref().and_then(|problem| problem["error"][member].as_str()).unwrap_or_default()
    }

    /// What is said about the key itself, whatever the status: servers choose it (ours has a setting). Also where a
    /// gateway has lost the content type: to overlook it would mean to forget an operation.
    fn about_the_key(&self) -> Option<Verdict> {
        if self.has_type("effects-unknown") {
            Some(Verdict::EffectsUnknown)
        } else if self.has_type("key-reused")
            || (self.error("type") == "idempotency_error" && self.error("code") != "idempotency_key_in_use")
        {
            Some(Verdict::Mismatch)
        } else {
            None
        }
    }

    fn in_flight(&self, headers: &HeaderMap) -> bool {
        let says_so = || self.has_type("in-flight") || self.error("code") == "idempotency_key_in_use";
        headers.contains_key(RETRY_AFTER) || (self.is_declared && says_so())
    }
}

/// What the answer says about its key, if it says anything: more certain than any rule about statuses.
pub(crate) fn about_the_key(answer: &Answer) -> Option<Verdict> {
    Problem::of(answer).about_the_key()
}

/// Whether a 409 means "in flight" and not a conflict of the application's own.
///
/// It does when it carries `Retry-After`; when it is a problem (`application/problem+json`) whose `type` ends in
/// `in-flight`; or when its JSON body says `error.code = "idempotency_key_in_use"`, as Stripe's does.
#[must_use]
pub fn in_flight(headers: &HeaderMap, body: &[u8]) -> bool {
    Problem::read(headers, body).in_flight(headers)
}

/// Whether a request may be sent more than once: with a key always, without one only if HTTP itself calls the method
/// idempotent (GET, HEAD, OPTIONS, TRACE, PUT, DELETE). A POST or PATCH without a key is sent once.
#[must_use]
pub fn may_repeat(method: &Method, has_key: bool) -> bool {
    has_key || method.is_idempotent()
}

/// What is known about the operation when the caller is given an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// The answer is that of the operation: done, or done by an earlier attempt.
    Told,
    /// The operation was not carried out, by no attempt.
    NotDone,
    /// Nobody knows.
    Unknown,
}

/// What an answer that is given to the caller tells about the operation.
///
/// `earlier` is the fate of the attempts before it. After an attempt of unknown fate a refusal proves nothing: it may
/// come from in front of the operation (the token check, the body parser, a proxy), which knows no key. Only a
/// success, a redirect, or an answer that is marked as a replay is then the operation's own. A 307 or 308 that was not
/// followed is not: it asks for the same request elsewhere.
pub(crate) fn knowledge(answer: &Answer, verdict: Verdict, earlier: Fate) -> Known {
    match verdict {
        Verdict::Mismatch | Verdict::EffectsUnknown | Verdict::Unsettled | Verdict::InFlight => return Known::Unknown,
        Verdict::Retry(Fate::Unknown) => return Known::Unknown,
        Verdict::Retry(Fate::NotSent | Fate::Refused) => {
            return if earlier == Fate::Unknown { Known::Unknown } else { Known::NotDone };
        }
        Verdict::Final => {}
    }
    let points_elsewhere = matches!(answer.status.as_u16(), 307 | 308);
    let is_own = answer.status.is_success() || (answer.status.is_redirection() && !points_elsewhere);
    if is_own || answer.is_replay() {
        Known::Told
    } else if answer.status.is_client_error() && earlier != Fate::Unknown {
        Known::NotDone
    } else {
        Known::Unknown
    }
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
    /// The header that marks a replay at this server, besides those that are known.
    replay_header: Option<HeaderName>,
}

impl Answer {
    /// An answer, for a test of a classification of your own.
    #[must_use]
    pub fn new(status: StatusCode, headers: HeaderMap, body: impl Into<Bytes>) -> Self {
        Self { status, headers, body: body.into(), replay_header: None }
    }

    pub(crate) fn marked_by(mut self, replay_header: Option<&HeaderName>) -> Self {
        self.replay_header = replay_header.cloned();
        self
    }

    /// The answer's replay marker: the outcome is that of an earlier attempt. It is `Idempotency-Replayed: true` (ours),
    /// `Idempotent-Replayed: true` (Stripe's), or the header that [`crate::Builder::replay_header`] names.
    #[must_use]
    pub fn is_replay(&self) -> bool {
        is_replay(&self.headers, self.replay_header.as_ref())
    }
}

pub(crate) fn is_replay(headers: &HeaderMap, own: Option<&HeaderName>) -> bool {
    let own = own.map(HeaderName::as_str);
    ["idempotency-replayed", "idempotent-replayed"]
        .into_iter()
        .chain(own)
        .any(|name| headers.get(name).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"true")))
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
        assert_eq!(status(StatusCode::CONFLICT, true), Verdict::InFlight);
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

    fn answered(code: u16, lines: &[(&'static str, &'static str)], body: &'static str) -> Answer {
        let lines =
            lines.iter().map(|(name, value)| (http::HeaderName::from_static(name), HeaderValue::from_static(value)));
        Answer::new(StatusCode::from_u16(code).unwrap(), lines.collect(), body)
    }

    const JSON: (&str, &str) = ("content-type", "application/json");
    const PROBLEM: (&str, &str) = ("content-type", "application/problem+json");

    #[test]
    fn after_an_attempt_of_unknown_fate_only_the_operations_own_answer_settles() {
        for code in 200..=599 {
            for marked in [false, true] {
                let lines: &[_] = if marked { &[("idempotency-replayed", "true")] } else { &[] };
                let answer = answered(code, lines, "");
                let verdict = standard(&answer);
                let after = |earlier| knowledge(&answer, verdict, earlier);
                if !verdict.is_final() {
                    continue;
                }
                let own = (code < 400 && ![307, 308].contains(&code)) || marked;
                assert_eq!(after(Fate::Unknown), if own { Known::Told } else { Known::Unknown }, "{code} {marked}");
                for certain in [Fate::NotSent, Fate::Refused] {
                    let expected = match code {
                        _ if own => Known::Told,
                        400..500 => Known::NotDone,
                        _ => Known::Unknown,
                    };
                    assert_eq!(after(certain), expected, "{code} {marked}");
                }
            }
        }
    }

    #[test]
    fn a_mismatch_is_known_by_its_type_and_not_by_its_status() {
        let ours = r#"{"type":"https://idem.example/problems#key-reused"}"#;
        let stripes =
            r#"{"error":{"type":"idempotency_error","message":"Keys for idempotent requests can only be …"}}"#;
        for code in [400, 409, 422] {
            for (line, body) in [(PROBLEM, ours), (JSON, stripes)] {
                for lines in [vec![line], vec![line, ("retry-after", "1")]] {
                    let answer = answered(code, &lines, body);
                    for verdict in [standard(&answer), stripe(&answer), aws(&answer)] {
                        assert_eq!(verdict, Verdict::Mismatch, "{code} {body}");
                    }
                    for earlier in [Fate::NotSent, Fate::Refused, Fate::Unknown] {
                        assert_eq!(knowledge(&answer, Verdict::Mismatch, earlier), Known::Unknown);
                    }
                }
            }
        }
        assert_eq!(standard(&answered(422, &[JSON], r#"{"type":"out-of-stock"}"#)), Verdict::Final);
        let busy = answered(409, &[JSON], r#"{"error":{"type":"idempotency_error","code":"idempotency_key_in_use"}}"#);
        assert_eq!((standard(&busy), stripe(&busy)), (Verdict::InFlight, Verdict::InFlight));
    }

    #[test]
    fn effects_unknown_is_final_and_settles_nothing() {
        let body =
            r#"{"type":"https://docs.rs/idem-runtime/latest/idem_runtime/contract/#effects-unknown","status":500}"#;
        for marked in [false, true] {
            let lines: &[_] = if marked { &[PROBLEM, ("idempotency-replayed", "true")] } else { &[PROBLEM] };
            let answer = answered(500, lines, body);
            for verdict in [standard(&answer), stripe(&answer), aws(&answer)] {
                assert_eq!(verdict, Verdict::EffectsUnknown);
            }
            assert_eq!(knowledge(&answer, Verdict::EffectsUnknown, Fate::NotSent), Known::Unknown);
        }
    }

    #[test]
    fn stripe_retries_what_its_sdks_retry() {
        let says = |word| ("stripe-should-retry", word);
        let replayed = ("idempotent-replayed", "true");
        for (answer, verdict) in [
            (answered(200, &[], ""), Verdict::Final),
            (answered(402, &[], ""), Verdict::Final),
            (answered(429, &[], ""), Verdict::Final),
            (answered(429, &[says("true")], ""), Verdict::Retry(Fate::Refused)),
            (answered(400, &[says("true")], ""), Verdict::Retry(Fate::Unknown)),
            (answered(409, &[], ""), Verdict::Retry(Fate::Unknown)),
            (answered(409, &[says("false")], ""), Verdict::Final),
            (answered(500, &[], ""), Verdict::Retry(Fate::Unknown)),
            (answered(529, &[], ""), Verdict::Retry(Fate::Unknown)),
            (answered(500, &[says("false")], ""), Verdict::Unsettled),
            (answered(503, &[says("false")], ""), Verdict::Unsettled),
            (answered(500, &[replayed], ""), Verdict::Unsettled),
            (answered(402, &[replayed], ""), Verdict::Final),
        ] {
            assert_eq!(stripe(&answer), verdict, "{answer:?} {:?}", answer.headers);
        }
    }

    #[test]
    fn aws_retries_what_its_sdks_retry() {
        let throttled = Verdict::Retry(Fate::Refused);
        let dynamo = ("content-type", "application/x-amz-json-1.0");
        let rest = ("x-amzn-errortype", "ThrottlingException:http://internal.amazon.com/");
        let xml = "<ErrorResponse><Error><Type>Sender</Type><Code>Throttling</Code></Error></ErrorResponse>";
        for (answer, verdict) in [
            (answered(400, &[dynamo], r#"{"__type":"com.amazonaws.dynamodb#ThrottlingException"}"#), throttled),
            (answered(400, &[rest], "{}"), throttled),
            (answered(400, &[], xml), throttled),
            (answered(503, &[], "<Error><Code>SlowDown</Code></Error>"), throttled),
            (answered(400, &[], "<Error><Code>RequestTimeout</Code></Error>"), Verdict::Retry(Fate::Unknown)),
            (answered(400, &[dynamo], r#"{"__type":"a#TransactionInProgressException"}"#), Verdict::InFlight),
            (answered(400, &[dynamo], r#"{"__type":"a#IdempotentParameterMismatchException"}"#), Verdict::Mismatch),
            (answered(400, &[dynamo], r#"{"__type":"a#ValidationException"}"#), Verdict::Final),
            (answered(429, &[], ""), throttled),
            (answered(500, &[], ""), Verdict::Retry(Fate::Unknown)),
            (answered(501, &[], ""), Verdict::Final),
        ] {
            assert_eq!(aws(&answer), verdict, "{answer:?} {:?}", answer.body);
        }
    }

    #[test]
    fn a_replay_is_known_by_either_header_and_by_the_one_that_is_set() {
        assert!(answered(200, &[("idempotency-replayed", "true")], "").is_replay());
        assert!(answered(200, &[("idempotent-replayed", "true")], "").is_replay());
        assert!(!answered(200, &[("idempotent-replayed", "false")], "").is_replay());
        let own = HeaderName::from_static("x-seen-before");
        let answer = answered(200, &[("x-seen-before", "true")], "");
        assert!(!answer.is_replay() && answer.marked_by(Some(&own)).is_replay());
    }
}
