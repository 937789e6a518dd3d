//! One fault at every message of a request, and a client that retries.
//!
//! "Safe to retry" is a claim about the worst moment, so the matrix visits every moment: it runs the application over a
//! pool whose connections go through the [proxy](crate::proxy), and lets each message between the two fail in turn.

mod report;
mod strike;
mod trial;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use axum::Router;
use axum::http::HeaderName;
use sqlx::PgPool;

use crate::external::ExternalCalls;
use crate::lane::Lane;
use crate::subject::{RequestTemplate, Subject, over_pool};
pub use report::{CrashReport, Trial};
pub use strike::Strike;
use trial::Baseline;

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
    /// Counts the effects of all requests so far, such as the rows of `orders`. Required.
    pub fn effects(mut self, count: impl AsyncFn(PgPool) -> sqlx::Result<i64> + 'a) -> Self {
        self.subject.effects = Some(over_pool(count));
        self
    }

    /// Runs before each trial, past the proxy: to fill the stock up again, say.
    pub fn before_each(mut self, prepare: impl AsyncFn(PgPool) -> sqlx::Result<()> + 'a) -> Self {
        self.subject.before_each = Some(over_pool(prepare));
        self
    }

    /// Checks that the same external calls are made in every trial, each with one key, derived from the request's
    /// (`<key>:<name>`). The fake provider records them; `calls` must be new.
    pub fn external_calls(mut self, calls: &ExternalCalls) -> Self {
        self.subject.external = Some(calls.clone());
        self
    }

    /// The header that carries the key. Default `Idempotency-Key`.
    pub fn key_header(mut self, name: HeaderName) -> Self {
        self.subject.key_header = name;
        self
    }

    /// The header that marks a replay. Default `Idempotency-Replayed`.
    pub fn replay_header(mut self, name: HeaderName) -> Self {
        self.subject.replay_header = name;
        self
    }

    /// A header that may differ between an answer and its replay: one of a layer outside of the handler, such as a
    /// request's number. `Date`,
    /// `Content-Length` and `Set-Cookie` always may.
    pub fn ignore_header(mut self, name: HeaderName) -> Self {
        self.subject.ignored_headers.push(name);
        self
    }

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

    /// Runs all trials. Takes about 20 ms a trial and a lane, and the time of the stalls.
    ///
    /// # Panics
    /// If there is no Postgres, if the effects cannot be counted, or if [`effects`](Self::effects) was not called.
    pub async fn run(self) -> CrashReport {
        assert!(self.subject.effects.is_some(), "a crash matrix must count effects; use `.effects(…)`");
        let first = self.open_lane().await;
        let baseline = trial::baseline(&self.subject, &first).await;
        let progress = RefCell::new(Progress::new(&self.strikes));
        let mut rest = Vec::new();
        for _ in 1..self.lanes {
            rest.push(self.open_lane().await);
        }
        let lanes = std::iter::once(first).chain(rest);
        let workers = lanes.map(|lane| self.work(lane, &baseline, &progress));
        futures_util::future::join_all(workers).await;
        let trials = progress.into_inner().trials;
        CrashReport::new(self.subject.describe(), &self.strikes, self.stall, baseline, trials, &self.subject)
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
    /// For each strike the next n; `None` once a trial met no fault.
    next: Vec<(Strike, Option<u64>)>,
    trials: BTreeMap<(Strike, u64), Trial>,
}

/// A request that exchanges more messages than this does not end.
const MOST: u64 = 10_000;

impl Progress {
    fn new(strikes: &[Strike]) -> Self {
        Self { next: strikes.iter().map(|strike| (*strike, Some(1))).collect(), trials: BTreeMap::new() }
    }

    fn next(&mut self) -> Option<(Strike, u64)> {
        // Stalls first: they wait most, and should not be what is waited for at the end.
        let (strike, next) = self.next.iter_mut().rev().find(|(_, next)| next.is_some())?;
        let n = (*next)?;
        *next = (n < MOST).then_some(n + 1);
        Some((*strike, n))
    }

    fn done(&mut self, strike: Strike, n: u64, trial: Option<Trial>) {
        match trial {
            Some(trial) => drop(self.trials.insert((strike, n), trial)),
            None => self.next.iter_mut().filter(|(other, _)| *other == strike).for_each(|(_, next)| *next = None),
        }
    }
}
