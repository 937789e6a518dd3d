//! A breaker for each host: when a host fails consistently, stop asking it.
//!
//! Attempts against a host that is down cost both sides something and tell nothing new. After a run of failures the
//! breaker opens and requests to that host fail at once, unsent. After a while a single probe goes through: if it is
//! answered the breaker closes, if not it stays open for another while. One probe, not all waiting requests: a host
//! that is just coming up must not meet everybody.
//!
//! A failure counts only if its attempt was begun after the host's last answer. A batch that starts at once and loses a
//! fifth of its answers sees twenty time-outs in the same moment, long after others of it were answered: they are a run,
//! and say nothing about the host now.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::back_off;
use crate::limits::{SettingError, duration, within};

/// How many hosts are remembered.
pub(crate) const MOST_HOSTS: usize = 1024;

/// Whether requests to a host go through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BreakerState {
    /// They do. `failures` attempts in a row have failed so far.
    Closed {
        /// The length of the present run of failures.
        failures: u32,
    },
    /// They fail at once, unsent. The next probe may go in this time, at the earliest.
    Open {
        /// How long until a probe may go.
        probe_in: Duration,
    },
    /// One probe is under way; everything else fails at once.
    Probing,
}

#[derive(Debug)]
enum State {
    Closed { failures: u32 },
    Open { until: Instant },
    Probing,
}

#[derive(Debug)]
struct Host {
    state: State,
    /// Counts changes of state, so that a straggler from before a change cannot decide about after it.
    generation: u64,
    /// When the last answer came: failures of attempts that were begun before it are history.
    answered: Option<Instant>,
    touched: Instant,
}

#[derive(Debug)]
pub(crate) struct Breakers {
    failures_to_open: u32,
    open_for: Duration,
    hosts: Mutex<HashMap<String, Host>>,
}

/// The permission to send one attempt. Dropped without a verdict (the caller went away), it decides nothing, and
/// a probe's place becomes free.
#[derive(Debug)]
pub(crate) struct Permit<'a> {
    breakers: &'a Breakers,
    host: &'a str,
    generation: u64,
    begun: Instant,
    probe: bool,
    decided: bool,
}

impl Breakers {
    pub(crate) fn new(failures_to_open: u32, open_for: Duration) -> Result<Self, SettingError> {
        within("breaker's failures", failures_to_open, 1, 10_000)?;
        duration("breaker's time open", open_for, Duration::from_secs(600))?;
        Ok(Self { failures_to_open, open_for, hosts: Mutex::default() })
    }

    /// Lets an attempt through, or says how long until it is worth asking again.
    pub(crate) fn admit<'a>(&'a self, host: &'a str) -> Result<Permit<'a>, Duration> {
        let begun = Instant::now();
        let permit = |generation, probe| Permit { breakers: self, host, generation, begun, probe, decided: false };
        self.with_hosts(|hosts| {
            let Some(entry) = hosts.get_mut(host) else { return Ok(permit(0, false)) };
            match entry.state {
                State::Closed { .. } => Ok(permit(entry.generation, false)),
                State::Probing => Err(Duration::ZERO),
                State::Open { until } => {
                    let left = until.saturating_duration_since(Instant::now());
                    if !left.is_zero() {
                        return Err(left);
                    }
                    entry.turn(State::Probing);
                    Ok(permit(entry.generation, true))
                }
            }
        })
    }

    pub(crate) fn state(&self, host: &str) -> BreakerState {
        self.with_hosts(|hosts| hosts.get(host).map_or(BreakerState::Closed { failures: 0 }, Host::visible))
    }

    pub(crate) fn states(&self) -> Vec<(String, BreakerState)> {
        self.with_hosts(|hosts| hosts.iter().map(|(host, entry)| (host.clone(), entry.visible())).collect())
    }

    fn with_hosts<T>(&self, act: impl FnOnce(&mut HashMap<String, Host>) -> T) -> T {
        act(&mut self.hosts.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Half to one and a half times the time open: clients that saw the host fail together do not probe together.
    fn next_probe(&self) -> State {
        State::Open { until: Instant::now() + self.open_for / 2 + back_off::up_to(self.open_for) }
    }

    fn failed(&self, permit: &Permit<'_>) {
        self.with_hosts(|hosts| {
            if !hosts.contains_key(permit.host) {
                make_room(hosts);
            }
            let entry = hosts.entry(permit.host.to_owned()).or_insert_with(Host::new);
            let refuted = entry.answered.is_some_and(|answered| permit.begun < answered);
            if entry.generation != permit.generation || (refuted && !permit.probe) {
                return;
            }
            entry.touched = Instant::now();
            match &mut entry.state {
                State::Probing => entry.turn(self.next_probe()),
                State::Closed { failures } if *failures + 1 >= self.failures_to_open => {
                    tracing::warn!(host = permit.host, failures = *failures + 1, "the breaker opens");
                    entry.turn(self.next_probe());
                }
                State::Closed { failures } => *failures += 1,
                State::Open { .. } => {}
            }
        });
    }

    fn answered(&self, permit: &Permit<'_>) {
        self.with_hosts(|hosts| {
            if !hosts.contains_key(permit.host) {
                make_room(hosts);
            }
            let entry = hosts.entry(permit.host.to_owned()).or_insert_with(Host::new);
            if entry.generation != permit.generation {
                return;
            }
            (entry.answered, entry.touched) = (Some(Instant::now()), Instant::now());
            if permit.probe {
                tracing::info!(host = permit.host, "the breaker closes");
                entry.turn(State::Closed { failures: 0 });
            } else if let State::Closed { failures } = &mut entry.state {
                *failures = 0;
            }
        });
    }

    fn probe_abandoned(&self, permit: &Permit<'_>) {
        self.with_hosts(|hosts| {
            if let Some(entry) = hosts.get_mut(permit.host)
                && entry.generation == permit.generation
            {
                entry.turn(State::Open { until: Instant::now() });
            }
        });
    }
}

impl Host {
    fn new() -> Self {
        Self { state: State::Closed { failures: 0 }, generation: 0, answered: None, touched: Instant::now() }
    }

    fn turn(&mut self, state: State) {
        self.state = state;
        self.generation += 1;
        self.touched = Instant::now();
    }

    fn visible(&self) -> BreakerState {
        match self.state {
            State::Closed { failures } => BreakerState::Closed { failures },
            State::Open { until } => BreakerState::Open { probe_in: until.saturating_duration_since(Instant::now()) },
            State::Probing => BreakerState::Probing,
        }
    }
}

/// A client that talks to ever new hosts must not grow for ever: the host that was heard of longest ago goes.
fn make_room(hosts: &mut HashMap<String, Host>) {
    if hosts.len() < MOST_HOSTS {
        return;
    }
    if let Some(oldest) = hosts.iter().min_by_key(|(_, entry)| entry.touched).map(|(host, _)| host.clone()) {
        hosts.remove(&oldest);
    }
}

impl Permit<'_> {
    /// The attempt failed in a way that says the host is not well.
    pub(crate) fn failed(mut self) {
        self.decided = true;
        self.breakers.failed(&self);
    }

    /// The host answered.
    pub(crate) fn answered(mut self) {
        self.decided = true;
        self.breakers.answered(&self);
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        if self.probe && !self.decided {
            self.breakers.probe_abandoned(self);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: &str = "http://shop.example:80";

    fn breakers() -> Breakers {
        Breakers::new(3, Duration::from_secs(2)).unwrap()
    }

    fn open(breakers: &Breakers) {
        (0..3).for_each(|_| breakers.admit(HOST).unwrap().failed());
        assert!(matches!(breakers.state(HOST), BreakerState::Open { .. }));
    }

    #[tokio::test(start_paused = true)]
    async fn it_opens_probes_and_closes() {
        let breakers = breakers();
        open(&breakers);
        let wait = breakers.admit(HOST).unwrap_err();
        assert!((Duration::from_secs(1)..=Duration::from_secs(3)).contains(&wait), "{wait:?}");
        tokio::time::advance(wait).await;
        let probe = breakers.admit(HOST).unwrap();
        assert_eq!(breakers.state(HOST), BreakerState::Probing);
        assert!(breakers.admit(HOST).is_err(), "one probe at a time");
        probe.failed();
        let wait = breakers.admit(HOST).unwrap_err();
        tokio::time::advance(wait).await;
        breakers.admit(HOST).unwrap().answered();
        assert_eq!(breakers.state(HOST), BreakerState::Closed { failures: 0 });
        assert!(breakers.admit(HOST).is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn one_answer_ends_the_run_of_failures() {
        let breakers = breakers();
        for _ in 0..10 {
            breakers.admit(HOST).unwrap().failed();
            breakers.admit(HOST).unwrap().failed();
            breakers.admit(HOST).unwrap().answered();
        }
        assert_eq!(breakers.state(HOST), BreakerState::Closed { failures: 0 });
    }

    #[tokio::test(start_paused = true)]
    async fn stragglers_decide_nothing() {
        let breakers = breakers();
        let (slow_success, slow_failure) = (breakers.admit(HOST).unwrap(), breakers.admit(HOST).unwrap());
        open(&breakers);
        slow_success.answered();
        assert!(matches!(breakers.state(HOST), BreakerState::Open { .. }));
        tokio::time::advance(Duration::from_secs(3)).await;
        let probe = breakers.admit(HOST).unwrap();
        slow_failure.failed();
        assert_eq!(breakers.state(HOST), BreakerState::Probing);
        probe.answered();
        assert_eq!(breakers.state(HOST), BreakerState::Closed { failures: 0 });
    }

    #[tokio::test(start_paused = true)]
    async fn time_outs_of_attempts_from_before_the_last_answer_count_for_nothing() {
        let breakers = breakers();
        let batch: Vec<_> = (0..20).map(|_| breakers.admit(HOST).unwrap()).collect();
        tokio::time::advance(Duration::from_millis(50)).await;
        breakers.admit(HOST).unwrap().answered();
        tokio::time::advance(Duration::from_secs(3)).await;
        batch.into_iter().for_each(Permit::failed);
        assert_eq!(breakers.state(HOST), BreakerState::Closed { failures: 0 });
        open(&breakers);
    }

    #[tokio::test(start_paused = true)]
    async fn an_abandoned_probe_frees_its_place() {
        let breakers = breakers();
        open(&breakers);
        tokio::time::advance(Duration::from_secs(3)).await;
        drop(breakers.admit(HOST).unwrap());
        breakers.admit(HOST).unwrap().answered();
        assert_eq!(breakers.state(HOST), BreakerState::Closed { failures: 0 });
    }

    #[tokio::test(start_paused = true)]
    async fn hosts_are_apart_and_their_number_is_bounded() {
        let breakers = breakers();
        open(&breakers);
        assert!(breakers.admit("http://other.example:80").is_ok());
        let names: Vec<String> = (0..2 * MOST_HOSTS).map(|number| format!("http://{number}.example:80")).collect();
        for name in &names {
            breakers.admit(name).unwrap().failed();
        }
        assert_eq!(breakers.states().len(), MOST_HOSTS);
    }
}
