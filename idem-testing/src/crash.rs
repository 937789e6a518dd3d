//! One fault at every message of a request, and a client that retries.
//!
//! "Safe to retry" is a claim about the worst moment, so the matrix visits every moment: it runs the application over a
//! pool whose connections go through the [proxy](crate::proxy), and lets each message between the two fail in turn.

mod report;
mod strike;
mod trial;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use axum::Router;
use axum::http::HeaderName;
use sqlx::PgPool;

use crate::baseline::{self, Baseline, Judged};
use crate::external::ExternalCalls;
use crate::finding::Finding;
use crate::lane::Lane;
use crate::subject::{RequestTemplate, Subject, over_pool, settings};
pub use report::{CrashReport, Trial};
use report::{EXTERNAL, Violation};
pub use strike::Strike;

/// Attacks a handler at every message that its request exchanges with Postgres.
///
/// `app` builds the application over the pool that it is given, creating tables that are missing; it is called once for
/// each trial, and stands for a process that the trial's fault happens to. `request` is sent to it with a new
/// idempotency key, and then, as long as there is no final answer, again: to it and to a second process in turn, with
/// the same key.
///
/// ```no_run
/// # use axum::{Router, body::Body, http::Request};
/// # use sqlx::PgPool;
/// # async fn app(pool: PgPool) -> Router { Router::new() }
/// # async fn example() {
/// let request = Request::post("/orders").body(Body::from(r#"{"product": 1}"#)).unwrap();
/// idem_testing::crash_matrix(app, request)
///     .effects(async |pool| sqlx::query_scalar("SELECT count(*) FROM orders").fetch_one(&pool).await)
///     .run()
///     .await
///     .assert_exactly_once();
/// # }
/// ```
pub fn crash_matrix<'a>(
    app: impl AsyncFn(PgPool) -> Router + 'a,
    request: impl RequestTemplate<'a>,
) -> CrashMatrix<'a> {
    CrashMatrix {
        subject: Subject::new(app, request),
        strikes: Strike::ALL.to_vec(),
        stall: Duration::from_millis(1500),
        lanes: 8,
    }
}

/// See [`crash_matrix`].
#[allow(missing_debug_implementations)]
#[must_use]
pub struct CrashMatrix<'a> {
    subject: Subject<'a>,
    strikes: Vec<Strike>,
    stall: Duration,
    lanes: usize,
}

impl<'a> CrashMatrix<'a> {
    settings!();

    /// How long a message is held back. Default 1.5 s. It must exceed the lease of the application under test, or a
    /// stall is only a slow network: build the application with a lease of a second.
    pub fn stall(mut self, time: Duration) -> Self {
        self.stall = time;
        self
    }

    /// Only these strikes. Default [`Strike::ALL`]; [`Strike::every_word`] is what a pooler may say at the worst moment,
    /// in full.
    pub fn strikes(mut self, strikes: &[Strike]) -> Self {
        self.strikes = strikes.to_vec();
        self
    }

    /// How many trials run at once, each in a database of its own. Default 8; at least 1.
    pub fn lanes(mut self, lanes: usize) -> Self {
        self.lanes = lanes.max(1);
        self
    }

    /// Runs all trials: about 20 ms a trial and a lane, and the time of the stalls. What the request does without a
    /// fault is judged first, and alone if it fails. After a few stuck keys it stops: each costs a client's whole patience.
    /// While it runs for long, it says so on standard error.
    ///
    /// # Panics
    /// If there is no Postgres, if the effects cannot be counted, or if [`effects`](Self::effects) was not called.
    pub async fn run(self) -> CrashReport {
        assert!(self.subject.effects.is_some(), "a crash matrix must count effects; use `.effects(…)`");
        let first = self.open_lane().await;
        let Judged { baseline, mut findings } = baseline::judge(&self.subject, &first).await;
        let Some(baseline) = baseline else { return CrashReport::stopped(self.subject.describe(), findings) };
        let broken = trial::replayed(&self.subject, &first, &baseline).await;
        // Whoever repeats the effect on a plain retry has it repeated after every fault too.
        if broken.iter().any(Violation::is_effect) {
            findings.extend(broken.into_iter().find(Violation::is_effect).map(Violation::finding));
            return CrashReport::stopped(self.subject.describe(), findings);
        }
        if let Some(violation) = broken.into_iter().next() {
            findings.push(violation.finding());
            return CrashReport::stopped(self.subject.describe(), findings);
        }
        let progress = RefCell::new(Progress::new(&self.subject.describe(), &self.strikes));
        let keys_before = self.subject.external.as_ref().map_or(0, ExternalCalls::keys);
        let mut rest = Vec::new();
        for _ in 1..self.lanes {
            rest.push(self.open_lane().await);
        }
        let lanes = std::iter::once(first).chain(rest);
        let workers = lanes.map(|lane| self.work(lane, &baseline, &progress));
        futures_util::future::join_all(workers).await;
        let progress = progress.into_inner();
        findings.extend(self.external_finding(&baseline, keys_before, &progress));
        let (not_seen, trials) = (progress.not_seen(), progress.trials.into_values().collect());
        CrashReport::new(self.subject.describe(), &self.strikes, self.stall, baseline, trials, findings, not_seen)
    }

    /// Keys that do not contain the request's cannot be told apart by trial; one too many still shows.
    fn external_finding(&self, baseline: &Baseline, before: usize, progress: &Progress) -> Option<Finding> {
        let calls = self.subject.external.as_ref().filter(|_| baseline.counts_external_keys())?;
        let executions = progress.executions;
        let (used, expected) = (calls.keys() - before, executions * baseline.external_keys);
        // What was given up may have ended before its call.
        let given_up = progress.trials.values().filter(|trial| trial.has_given_up()).count() * baseline.external_keys;
        let sent = format!("{executions} requests, each with a fault and its retries");
        let found = Finding::new(EXTERNAL, sent, format!("calls with {used} keys"), format!("{expected} keys"));
        let advice = "derive the provider's key from the request's, never from the attempt; one that contains the request's \
                      key is followed trial by trial";
        (used > expected || used + given_up < expected).then(|| found.advise(advice))
    }

    async fn open_lane(&self) -> Lane {
        Lane::open(&self.subject).await.unwrap_or_else(|error| panic!("the crash matrix needs Postgres: {error}"))
    }

    async fn work(&self, lane: Lane, baseline: &Baseline, progress: &RefCell<Progress>) {
        loop {
            let Some((strike, n)) = progress.borrow_mut().next() else { return };
            let trial = trial::run(&self.subject, &lane, baseline, strike, n, self.stall).await;
            progress.borrow_mut().done(strike, n, trial);
        }
    }
}

/// Which trials were run, and which come next.
struct Progress {
    request: String,
    /// For each strike the next n; `None` once a trial met no fault.
    next: Vec<(Strike, Option<u64>)>,
    trials: BTreeMap<(Strike, u64), Trial>,
    /// How many requests were carried to their end.
    executions: usize,
    stuck: usize,
    reported: Instant,
}

/// A request that exchanges more messages than this does not end.
const MOST: u64 = 10_000;

/// After so many stuck keys the next ones say nothing new.
const MOST_STUCK: usize = 8;

/// How often a long run says how far it is.
const REPORTED: Duration = Duration::from_secs(10);

impl Progress {
    fn new(request: &str, strikes: &[Strike]) -> Self {
        Self {
            request: request.to_owned(),
            next: strikes.iter().map(|strike| (*strike, Some(1))).collect(),
            trials: BTreeMap::new(),
            executions: 0,
            stuck: 0,
            reported: Instant::now(),
        }
    }

    fn next(&mut self) -> Option<(Strike, u64)> {
        if self.stuck >= MOST_STUCK {
            return None;
        }
        // Stalls first: they wait most, and should not be what is waited for at the end.
        let waits = self.next.iter().rposition(|(strike, next)| strike.is_stall() && next.is_some());
        let place = waits.or_else(|| self.next.iter().rposition(|(_, next)| next.is_some()))?;
        let (strike, next) = &mut self.next[place];
        let n = (*next)?;
        *next = (n < MOST).then_some(n + 1);
        Some((*strike, n))
    }

    fn done(&mut self, strike: Strike, n: u64, trial: Option<Trial>) {
        self.executions += 1;
        match trial {
            Some(trial) => {
                self.stuck += usize::from(trial.is_stuck());
                self.trials.insert((strike, n), trial);
            }
            None => self.next.iter_mut().filter(|(other, _)| *other == strike).for_each(|(_, next)| *next = None),
        }
        if self.reported.elapsed() >= REPORTED {
            self.reported = Instant::now();
            eprintln!("{}: {} faults so far, now {strike}", self.request, self.trials.len());
        }
    }

    fn not_seen(&self) -> Vec<String> {
        let memory = "what processes share in memory: all of them run in the test's own".to_owned();
        let stopped = format!("the faults that would have come after {} stuck keys", self.stuck);
        std::iter::once(memory).chain((self.stuck >= MOST_STUCK).then_some(stopped)).collect()
    }
}
