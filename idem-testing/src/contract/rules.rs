//! The rules, one function each.

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, Request, StatusCode, Uri};
use futures_util::future::join_all;

use super::Contract;
use super::report::{Finding, Outcome};
use crate::client::{Answer, Attempt, send};
use crate::lane::{Lane, TIMEOUT, Victim, retry_until_final};
use crate::proxy::{Action, Fault, Place};

pub(super) struct Checker<'c, 'a> {
    contract: &'c Contract<'a>,
    lane: &'c Lane,
    victim: Victim,
    /// A process as slow as the first.
    twin: Victim,
}

/// The trials of one rule, and what they found.
struct Check<'c, 'a> {
    contract: &'c Contract<'a>,
    lane: &'c Lane,
    before: i64,
    findings: Vec<Finding>,
}

impl<'c, 'a> Checker<'c, 'a> {
    pub(super) async fn new(contract: &'c Contract<'a>, lane: &'c Lane) -> Self {
        let victim = lane.victim(&contract.subject, 5).await;
        Self { contract, lane, victim, twin: lane.victim(&contract.subject, 5).await }
    }

    pub(super) async fn check(&self) -> Vec<(&'static str, Outcome)> {
        vec![
            ("a retry gets the first answer, and has no effect", self.in_sequence().await),
            ("two at once have one effect", self.at_once(2).await),
            ("twenty at once have one effect", self.at_once(20).await),
            ("another request under a used key is refused", self.other_request().await),
            (
                "a request without a key is refused, or has its effect each time where keys are optional",
                self.no_key().await,
            ),
            ("a malformed key is refused", self.malformed_keys().await),
            ("`key` and `\"key\"` are one key", self.quoted_key().await),
            ("the same key of somebody else is another key", self.other_scope().await),
            ("a client that hangs up and retries has one effect", self.interrupted(Interruption::HangUp).await),
            (
                "a process killed in the middle leaves the key free and one effect",
                self.interrupted(Interruption::Kill).await,
            ),
        ]
    }

    async fn begin(&self) -> Check<'c, 'a> {
        self.contract.subject.before_each(&self.lane.direct).await;
        let before = self.contract.subject.effects(&self.lane.direct).await;
        Check { contract: self.contract, lane: self.lane, before, findings: Vec::new() }
    }

    fn request(&self, key: &str) -> Request<Body> {
        self.contract.subject.request(key)
    }

    async fn send(&self, request: Request<Body>) -> Attempt {
        send(&self.victim.app, request, TIMEOUT).await
    }

    /// Whether the key travels in the header: otherwise the rules on the header do not apply.
    fn has_header(&self) -> bool {
        self.request("key").headers().contains_key(&self.contract.subject.key_header)
    }

    fn with_key_header(&self, values: &[&[u8]]) -> Request<Body> {
        let name = &self.contract.subject.key_header;
        let mut request = self.request("replaced");
        request.headers_mut().remove(name);
        for value in values {
            let value = HeaderValue::from_bytes(value).expect("visible bytes");
            request.headers_mut().append(name.clone(), value);
        }
        request
    }

    async fn in_sequence(&self) -> Outcome {
        let mut check = self.begin().await;
        let key = self.contract.subject.key("sequence");
        let first = self.send(self.request(&key)).await;
        let Some(answer) = check.must_be_final("a request with a new key", first) else {
            return check.outcome();
        };
        if answer.is_replay(&self.contract.subject.replay_header) {
            check.found("a request with a new key", &answer, "an answer that is not marked as a replay");
        }
        let once = check.effects().await;
        if self.contract.subject.effects.is_some() && answer.status.is_success() && once == 0 {
            check.found("a request with a new key", "no effect that is counted", "an effect");
        }
        check.must_replay("the same request again, to the same process", &self.victim.app, &key, &answer).await;
        check.must_replay("the same request again, to another process", &self.lane.other, &key, &answer).await;
        check.must_count("the same request three times", once).await;
        check.outcome()
    }

    async fn at_once(&self, count: usize) -> Outcome {
        let once = self.effect_of_one().await;
        let mut check = self.begin().await;
        let key = self.contract.subject.key("at-once");
        // Slow enough that all are under way together.
        self.lane.proxy.set_latency(Duration::from_millis(3));
        let apps = [&self.victim.app, &self.twin.app].into_iter().cycle();
        let attempts = join_all(apps.take(count).map(|app| send(app, self.request(&key), TIMEOUT))).await;
        self.lane.proxy.set_latency(Duration::ZERO);
        let sent = format!("{count} requests with one key at once");
        let mut firsts = attempts.iter().filter(|attempt| {
            attempt.answer().is_some_and(|answer| {
                !answer.is_replay(&self.contract.subject.replay_header) && !answer.asks_for_a_retry()
            })
        });
        let first = firsts.next().and_then(Attempt::answer).cloned();
        if let Some(second) = firsts.next() {
            check.found(&sent, format!("two executions: {second} is the second"), "one execution");
        }
        for attempt in &attempts {
            let allowed = attempt.answer().is_some_and(|answer| match answer.status {
                StatusCode::CONFLICT => answer.asks_for_a_retry(),
                status => !status.is_server_error(),
            });
            if !allowed {
                check.found(&sent, attempt, "the first answer, its replay, or 409 with `Retry-After`");
            }
        }
        if let Some(first) = first {
            for replay in attempts.iter().filter_map(Attempt::answer).filter(|answer| !answer.asks_for_a_retry()) {
                check.must_equal(&sent, &first, replay);
            }
            check.must_replay("the same request again", &self.victim.app, &key, &first).await;
        } else {
            check.found(&sent, "no execution", "one execution");
        }
        check.must_count(&sent, once).await;
        check.outcome()
    }

    /// What one request does, for comparison.
    async fn effect_of_one(&self) -> i64 {
        let check = self.begin().await;
        self.send(self.request(&self.contract.subject.key("one"))).await;
        check.effects().await
    }

    async fn other_request(&self) -> Outcome {
        let mut check = self.begin().await;
        let key = self.contract.subject.key("other");
        self.send(self.request(&key)).await;
        let once = check.effects().await;
        let other = match &self.contract.other_request {
            Some(template) => self.contract.subject.request_from(template, &key),
            None => with_other_query(self.request(&key)),
        };
        let attempt = self.send(other).await;
        let sent = "another request with the key of the first";
        check.must_have_status(sent, &attempt, self.contract.mismatch);
        check.must_count(sent, once).await;
        check.outcome()
    }

    async fn no_key(&self) -> Outcome {
        if !self.has_header() {
            return Outcome::NotChecked("the request has no key header");
        }
        let once = self.effect_of_one().await;
        let mut check = self.begin().await;
        let (first, second) = (self.send(self.with_key_header(&[])).await, self.send(self.with_key_header(&[])).await);
        let sent = "the request without a key, twice";
        if self.contract.key_is_optional {
            check.must_be_final(sent, first);
            check.must_be_final(sent, second);
            check.must_count(sent, 2 * once).await;
        } else {
            check.must_have_status(sent, &first, StatusCode::BAD_REQUEST);
            check.must_count(sent, 0).await;
        }
        check.outcome()
    }

    async fn malformed_keys(&self) -> Outcome {
        if !self.has_header() {
            return Outcome::NotChecked("the request has no key header");
        }
        let mut findings = Vec::new();
        let long = [b'a'; 256];
        let malformed: [(&str, &[&[u8]]); 6] = [
            ("an empty key", &[b""]),
            ("the key `\"\"`", &[b"\"\""]),
            ("a key of 256 characters", &[&long]),
            ("a key with a space", &[b"two words"]),
            ("a key beyond ASCII", &["clé".as_bytes()]),
            ("two key headers", &[b"first", b"second"]),
        ];
        for (sent, values) in malformed {
            let mut check = self.begin().await;
            let attempt = self.send(self.with_key_header(values)).await;
            check.must_have_status(sent, &attempt, StatusCode::BAD_REQUEST);
            check.must_count(sent, 0).await;
            findings.append(&mut check.findings);
        }
        Outcome::Checked(findings)
    }

    async fn quoted_key(&self) -> Outcome {
        if !self.has_header() {
            return Outcome::NotChecked("the request has no key header");
        }
        let mut check = self.begin().await;
        let key = self.contract.subject.key("quoted");
        let first = self.send(self.with_key_header(&[key.as_bytes()])).await;
        let once = check.effects().await;
        let again = self.send(self.with_key_header(&[format!("\"{key}\"").as_bytes()])).await;
        let sent = "the same key in quotes";
        if let (Some(first), Some(again)) = (check.must_be_final(sent, first), check.must_be_final(sent, again)) {
            check.must_be_replay(sent, &first, &again);
        }
        check.must_count(sent, once).await;
        check.outcome()
    }

    async fn other_scope(&self) -> Outcome {
        let Some(template) = &self.contract.other_scope else {
            return Outcome::NotChecked("use `.other_scope(…)`");
        };
        let mut check = self.begin().await;
        let key = self.contract.subject.key("scope");
        self.send(self.request(&key)).await;
        let once = check.effects().await;
        let sent = "the request from another scope, with the key of the first";
        let attempt = self.send(self.contract.subject.request_from(template, &key)).await;
        if let Some(answer) = check.must_be_final(sent, attempt)
            && answer.is_replay(&self.contract.subject.replay_header)
        {
            check.found(sent, &answer, "an execution of its own");
        }
        check.must_count(sent, 2 * once).await;
        check.outcome()
    }

    /// Interrupts at each round trip in turn.
    async fn interrupted(&self, how: Interruption) -> Outcome {
        let once = self.effect_of_one().await;
        let mut findings = Vec::new();
        for n in 1.. {
            let mut check = self.begin().await;
            let victim = self.lane.victim(&self.contract.subject, 1).await;
            let key = self.contract.subject.key("interrupted");
            self.lane.proxy.inject(Fault { place: Place::RoundTrip(n), action: how.action() });
            let interrupted = send(&victim.app, self.request(&key), how.patience()).await;
            self.lane.proxy.disarm();
            let Some(met) = self.lane.proxy.met() else {
                victim.close().await;
                break;
            };
            let sent = format!("a request, {how} in round trip {n} (`{}`), and then retries", met.short_statement(60));
            let apps: &[&Router] = match how {
                Interruption::HangUp => &[&victim.app, &self.lane.other],
                Interruption::Kill => &[&self.lane.other],
            };
            let mut attempts = Vec::new();
            match retry_until_final(&self.contract.subject, &key, apps, None, &mut attempts).await {
                Some(answer) => {
                    if let (Interruption::HangUp, Some(first)) = (how, interrupted.into_final(None)) {
                        check.must_equal(&sent, &first, &answer);
                    }
                    check.must_replay(&sent, &self.lane.other, &key, &answer).await;
                }
                None => {
                    let last = attempts.last().map_or(String::new(), Attempt::to_string);
                    check.found(&sent, format!("no final answer; at last {last}"), "a final answer");
                }
            }
            self.lane.proxy.heal();
            if let Some(open) = self.lane.settle(TIMEOUT).await {
                check.found(&sent, format!("sessions left open: {open}"), "none");
            }
            check.must_count(&sent, once).await;
            findings.append(&mut check.findings);
            victim.close().await;
        }
        Outcome::Checked(findings)
    }
}

#[derive(Clone, Copy)]
enum Interruption {
    HangUp,
    Kill,
}

impl Interruption {
    fn action(self) -> Action {
        match self {
            Self::HangUp => Action::Stall(Duration::from_millis(40)),
            Self::Kill => Action::Partition,
        }
    }

    fn patience(self) -> Duration {
        match self {
            Self::HangUp => Duration::from_millis(20),
            Self::Kill => Duration::from_millis(200),
        }
    }
}

impl std::fmt::Display for Interruption {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::HangUp => "its client hanging up",
            Self::Kill => "its process cut off from the database for good",
        })
    }
}

impl Check<'_, '_> {
    fn found(&mut self, sent: &str, came_back: impl ToString, must: &str) {
        let (sent, came_back, must) = (sent.to_owned(), came_back.to_string(), must.to_owned());
        self.findings.push(Finding { sent, came_back, must });
    }

    fn outcome(self) -> Outcome {
        Outcome::Checked(self.findings)
    }

    async fn effects(&self) -> i64 {
        self.contract.subject.effects(&self.lane.direct).await - self.before
    }

    async fn must_count(&mut self, sent: &str, expected: i64) {
        let counted = self.effects().await;
        if counted != expected {
            self.found(sent, format!("an effect of {counted}"), &format!("an effect of {expected}"));
        }
    }

    fn must_be_final(&mut self, sent: &str, attempt: Attempt) -> Option<Answer> {
        let came_back = attempt.to_string();
        let answer = attempt.into_final(None);
        if answer.is_none() {
            self.found(sent, came_back, "a final answer, not 5xx");
        }
        answer
    }

    fn must_have_status(&mut self, sent: &str, attempt: &Attempt, status: StatusCode) {
        if attempt.answer().is_none_or(|answer| answer.status != status) {
            self.found(sent, attempt, &status.to_string());
        }
    }

    fn must_equal(&mut self, sent: &str, first: &Answer, again: &Answer) {
        let subject = &self.contract.subject;
        let ignored: Vec<&HeaderName> = subject.ignored_headers.iter().chain([&subject.replay_header]).collect();
        if let Some(difference) = first.difference(again, &ignored) {
            self.found(sent, difference, "identical answers");
        }
    }

    fn must_be_replay(&mut self, sent: &str, first: &Answer, again: &Answer) {
        self.must_equal(sent, first, again);
        let header = &self.contract.subject.replay_header;
        if !again.is_replay(header) {
            self.found(sent, again, &format!("marked with `{header}: true`"));
        }
    }

    async fn must_replay(&mut self, sent: &str, app: &Router, key: &str, first: &Answer) {
        let attempt = send(app, self.contract.subject.request(key), TIMEOUT).await;
        if let Some(again) = self.must_be_final(sent, attempt) {
            self.must_be_replay(sent, first, &again);
        }
    }
}

fn with_other_query(mut request: Request<Body>) -> Request<Body> {
    let mut parts = request.uri().clone().into_parts();
    let path = parts.path_and_query.as_ref().map_or("/", |path| path.as_str());
    let separator = if path.contains('?') { '&' } else { '?' };
    parts.path_and_query = format!("{path}{separator}idem_contract=other").parse().ok();
    *request.uri_mut() = Uri::from_parts(parts).expect("a longer query is still a URI");
    request
}
