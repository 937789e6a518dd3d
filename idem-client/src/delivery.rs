//! One logical operation on its way: the checks before the first attempt, the attempts, the answer or giving up.

use std::time::{Duration, SystemTime};

use http::{Extensions, HeaderMap, HeaderValue, StatusCode};
use reqwest::{Request, Response};
use reqwest_middleware::Next;
use sha2::{Digest as _, Sha256};
use tokio::time::{Instant, sleep, timeout_at};

use crate::attempt::{self, Outcome};
use crate::back_off;
use crate::classify::{self, Answer, Fate, Verdict};
use crate::error::{Error, Failure, GaveUp, KeyProblem, Reason, Refusal};
use crate::journal::{JournalError, Record};
use crate::key::Key;
use crate::layer::{ATTEMPT_HEADER, Attempts, Settings, Shared, bare, host_of};
use crate::limits::{Limits, Overrides};
use crate::under_way::Sending;

/// Attempt counters of other retry layers and proxies. One of them on a request means that somebody outside retries.
const FOREIGN_COUNTERS: [&str; 6] = [
    "x-retry-count",
    "x-retry-attempt",
    "x-envoy-attempt-count",
    "x-stainless-retry-count",
    "amz-sdk-request",
    "grpc-previous-rpc-attempts",
];

fn request_hash(request: &Request, body: &[u8]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in [request.method().as_str().as_bytes(), request.url().as_str().as_bytes(), body] {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}

/// One logical operation on its way: what is fixed before the first attempt, and what the attempts have shown.
pub(crate) struct Delivery<'a> {
    shared: &'a Shared,
    request: Request,
    operation: String,
    key: Option<Key>,
    limits: Limits,
    started: Instant,
    deadline: Instant,
    host: String,
    attempts: u32,
    fate: Fate,
    /// The record that an earlier run left: it may have been carried out, whatever this run sees.
    pending_before: Option<Record>,
    last_answer: Option<Answer>,
    last_failure: Option<Failure>,
    /// There while the operation is on the journal.
    sending: Option<Sending<'a>>,
}

/// What an attempt means for the next one.
enum Step {
    Done(Response),
    Wait(Duration),
    GiveUp(Reason),
    Foreign(reqwest_middleware::Error),
}

impl<'a> Delivery<'a> {
    /// Everything that can be wrong with a request is found here, before anything is sent.
    pub(crate) fn prepare(shared: &'a Shared, mut request: Request, extensions: &Extensions) -> Result<Self, Refusal> {
        let overrides = extensions.get::<Overrides>().cloned().unwrap_or_default();
        let limits = overrides.apply(shared.settings.limits).map_err(Refusal::Setting)?;
        let key = settle_key(&shared.settings, &mut request, extensions.get::<Key>())?;
        let repeats = limits.attempts > 1 && classify::may_repeat(request.method(), key.is_some());
        let journalled = shared.settings.journal.is_some() && key.is_some();
        if (repeats || journalled) && request.try_clone().is_none() {
            return Err(Refusal::StreamingBody);
        }
        if let Some(name) = outer_counter(request.headers()) {
            shared.warn_of_outer(name);
        }
        let started = Instant::now();
        let deadline = started + inherited_deadline(shared, request.headers(), limits.deadline);
        let operation = overrides.operation.or_else(|| key.as_ref()?.operation().map(str::to_owned));
        Ok(Self {
            shared,
            operation: operation.unwrap_or_else(|| format!("{} {}", request.method(), request.url().path())),
            key,
            limits,
            started,
            deadline,
            host: host_of(request.url()),
            request,
            attempts: 0,
            fate: Fate::NotSent,
            pending_before: None,
            last_answer: None,
            last_failure: None,
            sending: None,
        })
    }

    pub(crate) async fn run(mut self, extensions: &mut Extensions, next: Next<'_>) -> Result<Response, Error> {
        self.begin_in_journal().await?;
        loop {
            let reason = match self.attempt(extensions, next.clone()).await {
                Step::Done(response) => return Ok(response),
                Step::Foreign(error) => return Err(Error::Other(error)),
                Step::GiveUp(reason) => reason,
                Step::Wait(wait) => match self.may_try_again(wait) {
                    Ok(()) => {
                        sleep(wait).await;
                        continue;
                    }
                    Err(reason) => reason,
                },
            };
            return Err(self.give_up(reason).await);
        }
    }

    async fn attempt(&mut self, extensions: &mut Extensions, next: Next<'_>) -> Step {
        if Instant::now() >= self.deadline {
            return Step::GiveUp(Reason::DeadlinePassed);
        }
        let host = self.host.clone();
        let Ok(permit) = self.shared.breakers.admit(&host) else { return Step::GiveUp(Reason::BreakerOpen) };
        let full_time = Instant::now() + self.limits.attempt_timeout;
        let until = full_time.min(self.deadline);
        let request = self.next_request();
        self.attempts += 1;
        if self.attempts == 1 {
            self.shared.budget.deposit();
        }
        match attempt::send(request, extensions, next, until, self.shared.settings.buffer_limit).await {
            Outcome::Foreign(error) => Step::Foreign(error),
            Outcome::Answered(response, answer) => {
                let in_flight = answer.status == StatusCode::CONFLICT && self.means_in_flight(&answer);
                match classify::status(answer.status, in_flight) {
                    Verdict::Retry(_) if answer.status.is_server_error() => permit.failed(),
                    _ => permit.answered(),
                }
                self.judge(response, answer, in_flight).await
            }
            Outcome::Failed(failure, fate, seen) => {
                match &failure {
                    // The request is at fault, or it was given less than an attempt's time: the host is not judged.
                    Failure::Request(_) => {}
                    Failure::TimedOut if until < full_time => {}
                    _ => permit.failed(),
                }
                self.failed(failure, fate, seen)
            }
        }
    }

    fn means_in_flight(&self, answer: &Answer) -> bool {
        classify::in_flight(&answer.headers, &answer.body)
            || self.shared.settings.in_flight.as_ref().is_some_and(|means| means(answer))
    }

    async fn judge(&mut self, mut response: Response, answer: Answer, in_flight: bool) -> Step {
        match classify::status(answer.status, in_flight) {
            Verdict::Retry(fate) if self.may_repeat() => {
                self.fate = self.fate.max(fate);
                let step = self.wait_for(&answer);
                self.last_answer = Some(answer);
                step
            }
            _ => {
                self.strike_off_if_settled(&answer).await;
                response.extensions_mut().insert(Attempts(self.attempts));
                Step::Done(response)
            }
        }
    }

    fn failed(&mut self, failure: Failure, fate: Fate, seen: Option<Answer>) -> Step {
        self.fate = self.fate.max(fate);
        let hopeless = matches!(failure, Failure::Request(_));
        self.last_failure = Some(failure);
        self.last_answer = seen.or(self.last_answer.take());
        if hopeless {
            Step::GiveUp(Reason::Hopeless)
        } else if !self.may_repeat() {
            Step::GiveUp(Reason::NoKey)
        } else {
            Step::Wait(self.jitter())
        }
    }

    fn may_repeat(&self) -> bool {
        classify::may_repeat(self.request.method(), self.key.is_some())
    }

    /// The wait that the answer asks for, else the jitter. Clients that were told the same second must not come back
    /// in the same millisecond, so the jitter comes on top, never before.
    fn wait_for(&self, answer: &Answer) -> Step {
        let Some(asked) = back_off::retry_after(&answer.headers, SystemTime::now()) else {
            return Step::Wait(self.jitter());
        };
        let left = self.deadline.saturating_duration_since(Instant::now());
        if asked >= left {
            return Step::GiveUp(Reason::RetryAfter(asked));
        }
        Step::Wait(asked + self.jitter().min((left - asked) / 2))
    }

    fn jitter(&self) -> Duration {
        back_off::full_jitter(self.limits.base, self.limits.cap, self.attempts)
    }

    /// The budget comes last: a retry that another limit forbids must not cost it anything.
    fn may_try_again(&self, wait: Duration) -> Result<(), Reason> {
        if self.attempts >= self.limits.attempts {
            return Err(Reason::AttemptsSpent);
        }
        if wait >= self.deadline.saturating_duration_since(Instant::now()) {
            return Err(Reason::DeadlinePassed);
        }
        if self.shared.budget.withdraw() { Ok(()) } else { Err(Reason::BudgetSpent) }
    }

    /// The request of the next attempt: the same bytes and the same key, and how long its answer is waited for.
    fn next_request(&mut self) -> Request {
        let mut request = match self.request.try_clone() {
            Some(copy) => copy,
            // A stream that is sent once: `prepare` has seen to it that there is no second attempt.
            None => {
                let hollow = Request::new(self.request.method().clone(), self.request.url().clone());
                std::mem::replace(&mut self.request, hollow)
            }
        };
        request.headers_mut().insert(ATTEMPT_HEADER, HeaderValue::from(self.attempts + 1));
        if let Some(name) = &self.shared.settings.deadline_header {
            let left = self.deadline.saturating_duration_since(Instant::now()).as_millis();
            request.headers_mut().insert(name, HeaderValue::from(u64::try_from(left).unwrap_or(u64::MAX)));
        }
        request
    }

    async fn begin_in_journal(&mut self) -> Result<(), Error> {
        let (Some(journal), Some(key)) = (&self.shared.settings.journal, &self.key) else { return Ok(()) };
        let body = self.request.body().and_then(reqwest::Body::as_bytes).unwrap_or_default();
        let target = self.shared.journal_target(&self.request);
        let record = Record::new(&self.operation, key.clone(), target.clone(), request_hash(&self.request, body));
        let sending = self.shared.under_way.enter((key.clone(), target));
        let begin = async {
            let _gate = sending.gate().await;
            journal.begin(&record).await
        };
        let late = || JournalError::new("the journal took longer than the deadline");
        let begun = timeout_at(self.deadline, begin).await.unwrap_or_else(|_| Err(late()));
        self.pending_before = begun.map_err(Refusal::Journal)?;
        self.sending = Some(sending);
        Ok(())
    }

    async fn strike_off_if_settled(&self, answer: &Answer) {
        let earlier = if self.pending_before.is_some() { Fate::Unknown } else { self.fate };
        let mismatch = answer.status == StatusCode::UNPROCESSABLE_ENTITY && self.differs_from_record();
        if !mismatch && classify::settles(answer.status, Some(earlier)) {
            self.strike_off(answer.status.is_success()).await;
        }
    }

    /// Whether the record that an earlier run left was of another request: then a 422 is about ours, not about it.
    fn differs_from_record(&self) -> bool {
        let body = self.request.body().and_then(reqwest::Body::as_bytes).unwrap_or_default();
        let hash = request_hash(&self.request, body);
        self.pending_before.as_ref().is_some_and(|record| record.request_hash != hash)
    }

    /// Strikes the operation off the journal. That it is `done` is true for every request with its key; that this
    /// request did nothing says nothing about another one that is under way.
    ///
    /// An answer is never withheld because the journal failed: a record too many costs a question.
    async fn strike_off(&self, done: bool) {
        let (Some(journal), Some(sending)) = (&self.shared.settings.journal, &self.sending) else { return };
        let strike_off = async {
            let _gate = sending.gate().await;
            if done || sending.is_alone() {
                let (key, target) = sending.id();
                journal.strike_off(key, target).await?;
            }
            Ok::<(), JournalError>(())
        };
        match timeout_at(self.deadline, strike_off).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "an answered operation could not be struck off the journal"),
            Err(_) => tracing::warn!("an answered operation could not be struck off the journal in time"),
        }
    }

    async fn give_up(self, reason: Reason) -> Error {
        let pending_before = self.pending_before.is_some();
        if !pending_before && self.fate != Fate::Unknown {
            self.strike_off(false).await;
        }
        tracing::debug!(operation = %self.operation, attempts = self.attempts, %reason, "gave up");
        Error::GaveUp(Box::new(GaveUp {
            status_url: self.key.as_ref().and_then(|key| self.shared.status_url(self.request.url(), key)),
            url: bare(self.request.url()),
            method: self.request.method().clone(),
            operation: self.operation,
            key: self.key,
            reason,
            attempts: self.attempts,
            elapsed: self.started.elapsed(),
            fate: self.fate,
            pending_before,
            last_answer: self.last_answer,
            last_failure: self.last_failure,
        }))
    }
}

/// Finds the key that the caller set, checks it, and puts it on the request; the caller's own is never replaced.
fn settle_key(settings: &Settings, request: &mut Request, given: Option<&Key>) -> Result<Option<Key>, Refusal> {
    let mut lines = request.headers().get_all(&settings.key_header).iter();
    let header = lines.next().map(Key::from_header).transpose();
    let header = header.map_err(|problem| Refusal::Key(KeyProblem::Invalid(problem)))?;
    if lines.next().is_some() {
        return Err(Refusal::Key(KeyProblem::Repeated));
    }
    match (header, given) {
        (Some(header), Some(given)) if header != *given => Err(Refusal::Key(KeyProblem::Conflict)),
        (Some(header), None) => Ok(Some(header)),
        (Some(_), Some(given)) => Ok(Some(given.clone())),
        (None, given) => {
            let needs_one = settings.random_keys && !request.method().is_idempotent();
            let key = given.cloned().or_else(|| needs_one.then(Key::random));
            if let Some(key) = &key {
                request.headers_mut().insert(&settings.key_header, key.to_header());
            }
            Ok(key)
        }
    }
}

fn outer_counter(headers: &HeaderMap) -> Option<&'static str> {
    if headers.contains_key(ATTEMPT_HEADER) {
        return Some("idempotency-attempt");
    }
    FOREIGN_COUNTERS.into_iter().find(|name| headers.contains_key(*name))
}

/// A request that is sent on behalf of another one may carry its deadline already; the nearer one counts.
fn inherited_deadline(shared: &Shared, headers: &HeaderMap, own: Duration) -> Duration {
    let inherited = shared.settings.deadline_header.as_ref().and_then(|name| {
        let text = headers.get(name)?.to_str().ok()?;
        text.trim().parse().ok().map(Duration::from_millis)
    });
    inherited.map_or(own, |inherited| inherited.min(own))
}
