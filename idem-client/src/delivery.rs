//! One logical operation on its way: the checks before the first attempt, the attempts, the answer or giving up.

use std::time::{Duration, SystemTime};

use http::{Extensions, HeaderMap, HeaderValue, StatusCode};
use reqwest::{Request, Response};
use reqwest_middleware::Next;
use sha2::{Digest as _, Sha256};
use tokio::time::{Instant, sleep, timeout_at};

use crate::attempt::{self, Outcome};
use crate::back_off;
use crate::body::{PreparedBody, ReplayableBody};
use crate::budget::Spender;
use crate::classify::{self, Answer, Fate, Known, Verdict};
use crate::error::{Error, Failure, GaveUp, KeyProblem, Reason, Refusal};
use crate::journal::{Journal, JournalError, Record};
use crate::key::Key;
use crate::layer::{ATTEMPT_HEADER, Attempts, Settings, Shared, bare, host_of};
use crate::limits::{Limits, Overrides};
use crate::observe::{self, AttemptReport, NextStep};
use crate::response::Standing;
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

/// The greatest bound of the jitter while an operation is in flight.
const MOST_IN_FLIGHT: Duration = Duration::from_secs(1);

/// How long the journal's last word may take past the deadline: what it says must be what the caller is told.
const GRACE: Duration = Duration::from_secs(1);

/// One logical operation on its way: what is fixed before the first attempt, and what the attempts have shown.
pub(crate) struct Delivery<'a> {
    shared: &'a Shared,
    request: Request,
    overrides: Overrides,
    replayable: Option<ReplayableBody>,
    body: Option<PreparedBody>,
    operation: String,
    key: Option<Key>,
    limits: Limits,
    started: Instant,
    deadline: Instant,
    host: String,
    spender: Spender<'a>,
    /// How often it was sent.
    attempts: u32,
    /// How many of the attempts were answered "in flight": they do not count against the limit.
    found_in_flight: u32,
    fate: Fate,
    /// The record that an earlier run left, or another request: it may have been carried out, whatever this run sees.
    pending_before: bool,
    last_answer: Option<Answer>,
    last_failure: Option<Failure>,
    /// The attempt that was made last, as it is reported.
    last_attempt: (Duration, Option<StatusCode>, Option<&'static str>),
    /// There when the operation has a key.
    sending: Option<Sending>,
    /// This request's own record, once it is on the journal.
    record: Option<Record>,
}

/// What an attempt means for the next one.
enum Step {
    Done(Response),
    Wait(Duration),
    WaitInFlight(Duration),
    GiveUp(Reason),
}

impl<'a> Delivery<'a> {
    /// `key` is what [`settle_key`] found.
    pub(crate) fn new(shared: &'a Shared, request: Request, key: Option<Key>, extensions: &Extensions) -> Self {
        let overrides = extensions.get::<Overrides>().cloned().unwrap_or_default();
        if let Some(name) = outer_counter(request.headers()) {
            shared.warn_of_outer(name);
        }
        let operation = overrides.operation.clone().or_else(|| key.as_ref()?.operation().map(str::to_owned));
        let operation = operation.unwrap_or_else(|| format!("{} {}", request.method(), request.url().path()));
        let sending = key.clone().map(|key| shared.under_way.enter((operation.clone(), key)));
        let (started, host, limits) = (Instant::now(), host_of(request.url()), shared.settings.limits);
        Self {
            shared,
            overrides,
            replayable: extensions.get::<ReplayableBody>().cloned(),
            body: None,
            operation,
            key,
            limits,
            started,
            deadline: started + inherited_deadline(shared, request.headers(), limits.deadline),
            spender: shared.budgets.enter(&host),
            host,
            request,
            attempts: 0,
            found_in_flight: 0,
            fate: Fate::NotSent,
            pending_before: false,
            last_answer: None,
            last_failure: None,
            last_attempt: (Duration::ZERO, None, None),
            sending,
            record: None,
        }
    }

    pub(crate) async fn run(mut self, extensions: &mut Extensions, next: Next<'_>) -> Result<Response, Error> {
        if let Err(refusal) = self.begin().await {
            return Err(self.refuse(refusal).await);
        }
        loop {
            let step = self.attempt(extensions, next.clone()).await;
            let reason = match self.limited(step) {
                Step::Done(response) => return Ok(response),
                Step::GiveUp(reason) => reason,
                Step::Wait(wait) => {
                    self.report(NextStep::Retry { wait });
                    sleep(wait).await;
                    continue;
                }
                Step::WaitInFlight(wait) => {
                    self.report(NextStep::WaitInFlight { wait });
                    sleep(wait).await;
                    continue;
                }
            };
            return Err(self.give_up(reason).await);
        }
    }

    /// Everything else that can be wrong with a request is found here, before anything is sent.
    async fn begin(&mut self) -> Result<(), Refusal> {
        self.limits = self.overrides.apply(self.shared.settings.limits).map_err(Refusal::Setting)?;
        self.deadline = self.started + inherited_deadline(self.shared, self.request.headers(), self.limits.deadline);
        if let Some(body) = self.replayable.take() {
            let late = |_| std::io::Error::from(std::io::ErrorKind::TimedOut);
            let prepared = timeout_at(self.deadline, body.prepare()).await.map_err(late);
            self.body = Some(prepared.flatten().map_err(Refusal::Body)?);
        }
        let repeats = self.limits.attempts > 1 && self.may_repeat();
        let journalled = self.shared.settings.journal.is_some() && self.key.is_some();
        if (repeats || journalled) && self.body.is_none() && self.request.try_clone().is_none() {
            return Err(Refusal::StreamingBody);
        }
        self.begin_in_journal().await.map_err(Refusal::Journal)
    }

    async fn attempt(&mut self, extensions: &mut Extensions, next: Next<'_>) -> Step {
        self.last_attempt = (Duration::ZERO, None, None);
        if Instant::now() >= self.deadline {
            return Step::GiveUp(Reason::DeadlinePassed);
        }
        let host = self.host.clone();
        let shared = self.shared;
        let Ok(permit) = shared.breakers.admit(&host) else { return Step::GiveUp(Reason::BreakerOpen) };
        let full_time = Instant::now() + self.limits.attempt_timeout;
        let until = full_time.min(self.deadline);
        let request = match self.next_request().await {
            Ok(request) => request,
            Err(problem) => {
                self.last_failure = Some(Failure::Refused(Refusal::Body(problem)));
                return Step::GiveUp(Reason::Hopeless);
            }
        };
        self.attempts += 1;
        if self.attempts == 1 {
            self.spender.deposit();
        }
        self.spender.begin_attempt();
        let begun = Instant::now();
        // If the caller goes away in the middle of it, nobody knows.
        self.set_fate_unknown(true);
        let outcome = attempt::send(request, extensions, next, until, &shared.settings).await;
        self.last_attempt.0 = begun.elapsed();
        match outcome {
            Outcome::Answered { response, answer, lost_one } => {
                if lost_one {
                    self.fate = Fate::Unknown;
                }
                let verdict = self.verdict(&answer);
                self.last_attempt.1 = Some(answer.status);
                let failed = matches!(verdict, Verdict::Retry(_));
                self.spender.end_attempt(Some(!failed));
                if failed && answer.status.is_server_error() {
                    permit.failed()
                } else {
                    permit.answered()
                }
                self.judge(response, answer, verdict).await
            }
            Outcome::Failed(failure, fate, seen) => {
                self.last_attempt.2 = Some(failure.name());
                match &failure {
                    // The request or a middleware is at fault, or it was given less than an attempt's time: the host is
                    // not judged.
                    Failure::Request(_) | Failure::Middleware(_) | Failure::Redirected | Failure::Refused(_) => {
                        self.spender.end_attempt(None);
                    }
                    Failure::TimedOut if until < full_time => self.spender.end_attempt(None),
                    Failure::TimedOut | Failure::Connect(_) | Failure::Broken(_) => {
                        self.spender.end_attempt(Some(false));
                        permit.failed();
                    }
                }
                self.failed(failure, fate, seen)
            }
        }
    }

    /// What the answer means. What it says about its key is more certain than a classification that lets it stand.
    fn verdict(&self, answer: &Answer) -> Verdict {
        let settings = &self.shared.settings;
        let verdict = (settings.classify)(answer);
        if !verdict.is_final() {
            return verdict;
        }
        let own_word = || settings.in_flight.as_ref().is_some_and(|means| means(answer));
        match classify::about_the_key(answer) {
            Some(about_the_key) => about_the_key,
            None if answer.status == StatusCode::CONFLICT && own_word() => Verdict::InFlight,
            None => verdict,
        }
    }

    async fn judge(&mut self, response: Response, answer: Answer, verdict: Verdict) -> Step {
        let step = match verdict {
            Verdict::EffectsUnknown => {
                self.fate = Fate::Unknown;
                Step::GiveUp(Reason::EffectsUnknown)
            }
            Verdict::Retry(fate) if self.may_repeat() => {
                self.fate = self.fate.max(fate);
                self.wait_for(&answer, self.jitter())
            }
            Verdict::InFlight if self.may_repeat() => {
                self.fate = Fate::Unknown;
                self.found_in_flight += 1;
                match self.wait_for(&answer, self.jitter_in_flight()) {
                    Step::Wait(wait) => Step::WaitInFlight(wait.max(back_off::LEAST_ASKED)),
                    other => other,
                }
            }
            _ => return self.answer(response, &answer, verdict).await,
        };
        self.set_fate_unknown(self.fate == Fate::Unknown);
        self.last_answer = Some(answer);
        step
    }

    fn failed(&mut self, failure: Failure, fate: Fate, seen: Option<Answer>) -> Step {
        self.fate = self.fate.max(fate);
        self.set_fate_unknown(self.fate == Fate::Unknown);
        let reason = match failure {
            Failure::Request(_) | Failure::Refused(_) => Some(Reason::Hopeless),
            Failure::Middleware(_) => Some(Reason::Middleware),
            Failure::Redirected => Some(Reason::Redirected),
            _ if !self.may_repeat() => Some(Reason::NoKey),
            _ => None,
        };
        self.last_failure = Some(failure);
        self.last_answer = seen.or(self.last_answer.take());
        reason.map_or_else(|| Step::Wait(self.jitter()), Step::GiveUp)
    }

    fn may_repeat(&self) -> bool {
        classify::may_repeat(self.request.method(), self.key.is_some())
    }

    /// The wait that the answer asks for, else the jitter. Clients that were told the same second must not come back
    /// in the same millisecond, so the jitter comes on top, never before.
    fn wait_for(&self, answer: &Answer, jitter: Duration) -> Step {
        let Some(asked) = back_off::retry_after(&answer.headers, SystemTime::now()) else {
            return Step::Wait(jitter);
        };
        let left = self.deadline.saturating_duration_since(Instant::now());
        if asked >= left {
            return Step::GiveUp(Reason::RetryAfter(asked));
        }
        Step::Wait(asked + jitter.min((left - asked) / 2))
    }

    fn jitter(&self) -> Duration {
        back_off::full_jitter(self.limits.base, self.limits.cap, self.attempts - self.found_in_flight)
    }

    /// An operation in flight ends at some moment, and nobody is the worse for being asked about it: the bound stays near.
    fn jitter_in_flight(&self) -> Duration {
        back_off::full_jitter(self.limits.base, self.limits.cap.min(MOST_IN_FLIGHT), self.found_in_flight)
    }

    /// Holds the next step against the limits. The budget comes last: a retry that another limit forbids must not cost
    /// it anything. Waiting for an operation in flight is neither an attempt nor a retry, but a request that may be sent
    /// once is sent once.
    fn limited(&self, step: Step) -> Step {
        let (wait, in_flight) = match step {
            Step::Wait(wait) => (wait, false),
            Step::WaitInFlight(wait) => (wait, true),
            other => return other,
        };
        let spent = self.attempts - self.found_in_flight >= self.limits.attempts;
        if self.limits.attempts == 1 || (spent && !in_flight) {
            return Step::GiveUp(Reason::AttemptsSpent);
        }
        if wait >= self.deadline.saturating_duration_since(Instant::now()) {
            return Step::GiveUp(Reason::DeadlinePassed);
        }
        if in_flight || self.spender.withdraw() { step } else { Step::GiveUp(Reason::BudgetSpent) }
    }

    /// The request of the next attempt: the same bytes and the same key, and how long its answer is waited for.
    async fn next_request(&mut self) -> std::io::Result<Request> {
        let mut request = match self.request.try_clone() {
            Some(copy) => copy,
            // A stream that is sent once: `begin` has seen to it that there is no second attempt.
            None => {
                let hollow = Request::new(self.request.method().clone(), self.request.url().clone());
                std::mem::replace(&mut self.request, hollow)
            }
        };
        if let Some(body) = &self.body {
            let late = |_| std::io::Error::from(std::io::ErrorKind::TimedOut);
            *request.body_mut() = Some(timeout_at(self.deadline, body.make()).await.map_err(late).flatten()?);
        }
        request.headers_mut().insert(ATTEMPT_HEADER, HeaderValue::from(self.attempts + 1));
        if let Some(name) = &self.shared.settings.deadline_header {
            let left = self.deadline.saturating_duration_since(Instant::now()).as_millis();
            request.headers_mut().insert(name, HeaderValue::from(u64::try_from(left).unwrap_or(u64::MAX)));
        }
        Ok(request)
    }

    fn request_hash(&self) -> [u8; 32] {
        let in_memory = || self.request.body().and_then(reqwest::Body::as_bytes).unwrap_or_default();
        let body = self.body.as_ref().map_or_else(|| Sha256::digest(in_memory()).into(), |body| body.hash);
        let url = self.request.url();
        let target = format!("{}?{}", url.path(), url.query().unwrap_or_default());
        let mut hash = Sha256::new();
        for part in [self.request.method().as_str().as_bytes(), target.as_bytes(), &body] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        hash.finalize().into()
    }

    async fn begin_in_journal(&mut self) -> Result<(), JournalError> {
        let (Some(journal), Some(sending)) = (&self.shared.settings.journal, &self.sending) else { return Ok(()) };
        let (operation, key) = sending.id().clone();
        let record = Record::new(operation, key, self.shared.journal_target(&self.request), self.request_hash());
        // What comes of it now is news: an earlier strike-off that is still due must not be about it.
        self.shared.settled().remove(sending.id());
        let begin = async {
            let _gate = sending.gate().await;
            journal.begin(&record).await
        };
        let late = || JournalError::new("the journal took longer than the deadline");
        match timeout_at(self.deadline, begin).await.unwrap_or_else(|_| Err(late()))? {
            None => self.record = Some(record),
            Some(before) => {
                self.pending_before = true;
                if before.request_hash != record.request_hash {
                    let operation = &record.operation;
                    tracing::warn!(
                        operation,
                        "the key is on the journal with another request; one of the two is a mistake"
                    );
                }
            }
        }
        Ok(())
    }

    /// Gives the caller an answer, with what it tells about the operation. The journal is made to say the same first.
    async fn answer(&mut self, mut response: Response, answer: &Answer, verdict: Verdict) -> Step {
        let earlier = if self.others_unknown() { Fate::Unknown } else { self.fate };
        let known = match classify::knowledge(answer, verdict, earlier) {
            Known::Told => {
                self.strike_off().await;
                Known::Told
            }
            Known::NotDone if self.withdraw().await => Known::NotDone,
            Known::NotDone | Known::Unknown => Known::Unknown,
        };
        if known == Known::Unknown {
            self.set_fate_unknown(true);
        }
        response.extensions_mut().insert(Attempts(self.attempts));
        response.extensions_mut().insert(Standing { known, is_replay: answer.is_replay() });
        self.report(NextStep::Answer { settled: known != Known::Unknown });
        Step::Done(response)
    }

    /// Whether an earlier run, or another request with the same key, may have done what this one did not.
    fn others_unknown(&self) -> bool {
        self.pending_before || self.sending.as_ref().is_some_and(Sending::others_may_have_done_it)
    }

    fn set_fate_unknown(&mut self, unknown: bool) {
        if let Some(sending) = &mut self.sending {
            sending.set_fate_unknown(unknown);
        }
    }

    fn last_word_until(&self) -> Instant {
        self.deadline.max(Instant::now() + GRACE)
    }

    /// The operation's outcome is known, for every request with its key: nothing is left to reconcile.
    ///
    /// An answer is never withheld because the journal failed: a record too many costs a question.
    async fn strike_off(&mut self) {
        let until = self.last_word_until();
        let Some(sending) = &mut self.sending else { return };
        sending.has_happened();
        let Some(journal) = &self.shared.settings.journal else { return };
        let (operation, key) = sending.id();
        let strike_off = async {
            let _gate = sending.gate().await;
            journal.strike_off(operation, key).await
        };
        let late = || JournalError::new("the journal took too long");
        if let Err(error) = timeout_at(until, strike_off).await.unwrap_or_else(|_| Err(late())) {
            tracing::warn!(%error, "an answered operation could not be struck off the journal yet");
            self.shared.strike_off_later(sending.id());
        }
    }

    /// This request did nothing. Says whether that is true of every request with its key, as far as is known, and then
    /// takes the record off the journal.
    async fn withdraw(&mut self) -> bool {
        let until = self.last_word_until();
        let Some(sending) = &mut self.sending else { return true };
        let withdraw = withdraw(sending, self.shared.settings.journal.as_deref(), self.record.as_ref());
        let late = || JournalError::new("the journal took too long");
        let alone = timeout_at(until, withdraw).await.unwrap_or_else(|_| Err(late())).unwrap_or_else(|error| {
            tracing::warn!(%error, "an operation that did not happen could not be struck off the journal");
            false
        });
        sending.set_fate_unknown(!alone);
        alone
    }

    async fn give_up(mut self, reason: Reason) -> Error {
        let mut others_unknown = self.others_unknown();
        if !others_unknown && self.fate != Fate::Unknown {
            others_unknown = !self.withdraw().await;
        }
        let may_have_happened = others_unknown || self.fate == Fate::Unknown;
        self.set_fate_unknown(may_have_happened);
        if !may_have_happened && let Some(Failure::Refused(refusal)) = self.last_failure {
            return Error::Refused(refusal);
        }
        self.report(NextStep::GiveUp { reason, may_have_happened });
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
            others_unknown,
            last_answer: self.last_answer,
            last_failure: self.last_failure,
        }))
    }

    /// Nothing was sent this time. Whether that means that nothing has happened depends on what is there from before.
    async fn refuse(mut self, refusal: Refusal) -> Error {
        let pending = async {
            match (&self.shared.settings.journal, &self.sending) {
                (Some(journal), Some(sending)) => {
                    let (operation, key) = sending.id();
                    let there = |record: &Record| record.operation == *operation && record.key == *key;
                    journal.pending().await.map_or(true, |records| records.iter().any(there))
                }
                _ => false,
            }
        };
        let pending = timeout_at(self.last_word_until(), pending).await.unwrap_or(true);
        if !pending && !self.others_unknown() {
            return Error::Refused(refusal);
        }
        self.pending_before = true;
        self.last_failure = Some(Failure::Refused(refusal));
        self.give_up(Reason::Refused).await
    }

    fn report(&self, next: NextStep) {
        let (took, status, failure) = self.last_attempt;
        // An operation without a name has that of its path, which may hold the key.
        let operation = match &self.key {
            Some(key) if self.operation.contains(key.as_str()) => &self.operation.replace(key.as_str(), "{key}"),
            _ => &self.operation,
        };
        let report = AttemptReport {
            operation,
            method: self.request.method(),
            host: &self.host,
            number: self.attempts,
            took,
            status,
            failure,
            next,
        };
        observe::report(&report, self.shared.settings.observer.as_ref());
    }
}

/// Under the gate nobody comes in between: who comes later finds the record as it is left.
async fn withdraw(
    sending: &Sending,
    journal: Option<&dyn Journal>,
    record: Option<&Record>,
) -> Result<bool, JournalError> {
    let _gate = sending.gate().await;
    if sending.others_may_have_done_it() {
        return Ok(false);
    }
    match (journal, record) {
        (Some(journal), Some(record)) => journal.withdraw(record).await,
        _ => Ok(true),
    }
}

/// A request was refused because of its key, or could not be built. Nothing was sent; but of one of the keys that were
/// meant an earlier request may have been.
pub(crate) async fn refused_for_its_key(
    shared: &Shared,
    request: &Request,
    given: Option<&Key>,
    refusal: Refusal,
) -> Error {
    let in_header = request.headers().get_all(&shared.settings.key_header).iter();
    let mut keys: Vec<Key> = in_header.filter_map(|value| Key::from_header(value).ok()).chain(given.cloned()).collect();
    keys.dedup();
    for key in keys {
        if !shared.has_seen(&key).await {
            continue;
        }
        return Error::GaveUp(Box::new(GaveUp {
            status_url: shared.status_url(request.url(), &key),
            url: bare(request.url()),
            method: request.method().clone(),
            operation: format!("{} {}", request.method(), request.url().path()),
            key: Some(key),
            reason: Reason::Refused,
            attempts: 0,
            elapsed: Duration::ZERO,
            fate: Fate::NotSent,
            others_unknown: true,
            last_answer: None,
            last_failure: Some(Failure::Refused(refusal)),
        }));
    }
    Error::Refused(refusal)
}

/// Finds the key that the caller set, checks it, and puts it on the request; the caller's own is never replaced.
pub(crate) fn settle_key(
    settings: &Settings,
    request: &mut Request,
    given: Option<&Key>,
) -> Result<Option<Key>, Refusal> {
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
                let value = if settings.quoted_keys { key.to_quoted_header() } else { key.to_header() };
                request.headers_mut().insert(&settings.key_header, value);
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
