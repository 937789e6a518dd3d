//! The retry budget: what keeps a thousand patient clients from being the outage.
//!
//! A limit per request does not bound the load: when the server is down, every request fails, and four attempts each
//! are four times the traffic. The budget bounds retries as a share of all requests. Each first attempt puts its
//! share of a token into a bucket, each retry takes a whole one, tokens lapse after ten seconds, and an empty bucket
//! means: fail now. A client that sends little would never collect a token, so a floor of retries per ten seconds is
//! always allowed. Each host has a budget of its own: one that is down must not cost the others their retries.
//!
//! A batch that starts at once is all requests and no time to earn from: the floor grows with what is under way, three
//! retries for each, as long as the host answers at all. A host that answers less than a tenth of its attempts is down,
//! and for it the share holds exactly, however many wait.
//!
//! Floor and share are the *greater of* and not added. A retry is spent for good: a success does not give it back.
//! Waiting for an operation in flight is no retry: the server that answers "in flight" is well, and says when to ask.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::breaker::MOST_HOSTS;
use crate::limits::{SettingError, within};

const SLOTS: usize = 10;
const SLOT: Duration = Duration::from_secs(1);

/// The retries that each operation under way may have: those of the default limits.
const FOR_EACH_UNDER_WAY: u64 = 3;

/// So many attempts must have ended before their outcomes say whether the host is down.
const ENOUGH_TO_JUDGE: u64 = 20;

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    number: u64,
    requests: u64,
    retries: u64,
    ended: u64,
    answered: u64,
    most_under_way: u64,
}

/// The requests and retries of the last ten seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BudgetState {
    /// First attempts in the last ten seconds.
    pub requests: u64,
    /// Retries in the last ten seconds.
    pub retries: u64,
    /// How many more retries are allowed right now.
    pub left: u64,
}

/// The budgets of all hosts.
#[derive(Debug)]
pub(crate) struct Budgets {
    share: f64,
    floor: u64,
    started: Instant,
    hosts: Mutex<HashMap<String, Host>>,
}

#[derive(Debug, Default)]
struct Host {
    slots: [Slot; SLOTS],
    under_way: u64,
    /// Attempts whose answer is awaited.
    awaited: u64,
    touched: u64,
}

/// An operation that is under way to a host.
#[derive(Debug)]
pub(crate) struct Spender<'a> {
    budgets: &'a Budgets,
    host: String,
    awaits: bool,
}

impl Budgets {
    pub(crate) fn new(share: f64, floor: u32) -> Result<Self, SettingError> {
        within("retry budget's share", share, 0.0, 10.0)?;
        within("retry budget's floor", floor, 0, 10_000)?;
        Ok(Self { share, floor: floor.into(), started: Instant::now(), hosts: Mutex::default() })
    }

    /// Counts an operation as under way until the spender is dropped.
    pub(crate) fn enter(&self, host: &str) -> Spender<'_> {
        self.with(host, |host, current| {
            host.under_way += 1;
            host.note_under_way(current);
        });
        Spender { budgets: self, host: host.to_owned(), awaits: false }
    }

    pub(crate) fn state(&self, host: &str) -> BudgetState {
        let unknown = BudgetState { requests: 0, retries: 0, left: self.floor };
        let mut hosts = self.lock();
        let now = self.now();
        hosts.get_mut(host).map_or(unknown, |host| {
            host.turn_to(now);
            self.sum(host)
        })
    }

    pub(crate) fn states(&self) -> Vec<(String, BudgetState)> {
        let now = self.now();
        let state = |(name, host): (&String, &mut Host)| {
            host.turn_to(now);
            (name.clone(), self.sum(host))
        };
        self.lock().iter_mut().map(state).collect()
    }

    fn sum(&self, host: &Host) -> BudgetState {
        let total = |count: fn(&Slot) -> u64| host.slots.iter().map(count).sum::<u64>();
        let (requests, retries) = (total(|slot| slot.requests), total(|slot| slot.retries));
        let (ended, answered) = (total(|slot| slot.ended), total(|slot| slot.answered));
        #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let earned = (requests as f64 * self.share).floor() as u64;
        // Failures are fast and answers take their time: what is still awaited may be answered yet.
        let is_down = ended >= ENOUGH_TO_JUDGE && answered * 10 < ended && host.awaited < ended;
        // A floor of zero says that nothing but the share may be spent.
        let grown = if is_down || self.floor == 0 { 0 } else { FOR_EACH_UNDER_WAY * host.most_under_way() };
        BudgetState { requests, retries, left: earned.max(self.floor).max(grown).saturating_sub(retries) }
    }

    fn now(&self) -> u64 {
        self.started.elapsed().as_secs() / SLOT.as_secs()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Host>> {
        self.hosts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One lock around looking and taking: two tasks cannot both take the last token.
    fn with<T>(&self, name: &str, act: impl FnOnce(&mut Host, usize) -> T) -> T {
        let mut hosts = self.lock();
        let now = self.now();
        if !hosts.contains_key(name) {
            make_room(&mut hosts);
            hosts.insert(name.to_owned(), Host::default());
        }
        let host = hosts.get_mut(name).expect("it was put there just now");
        let current = host.turn_to(now);
        act(host, current)
    }
}

impl Host {
    /// Lets the slots of more than ten seconds ago lapse; gives the present one.
    fn turn_to(&mut self, now: u64) -> usize {
        for slot in &mut self.slots {
            if slot.number + (SLOTS as u64) <= now {
                *slot = Slot::default();
            }
        }
        let current = usize::try_from(now % SLOTS as u64).expect("less than ten");
        self.slots[current].number = now;
        self.touched = now;
        current
    }

    fn note_under_way(&mut self, current: usize) {
        let slot = &mut self.slots[current];
        slot.most_under_way = slot.most_under_way.max(self.under_way);
    }

    fn most_under_way(&self) -> u64 {
        self.slots.iter().map(|slot| slot.most_under_way).max().unwrap_or_default().max(self.under_way)
    }
}

/// A client that talks to ever new hosts must not grow for ever: of those with nothing under way the one that was heard
/// of longest ago goes.
fn make_room(hosts: &mut HashMap<String, Host>) {
    if hosts.len() < MOST_HOSTS {
        return;
    }
    let idle = hosts.iter().filter(|(_, host)| host.under_way == 0);
    if let Some(oldest) = idle.min_by_key(|(_, host)| host.touched).map(|(name, _)| name.clone()) {
        hosts.remove(&oldest);
    }
}

impl Spender<'_> {
    /// Counts a first attempt. A request that is refused, or that a breaker holds back, earns nothing.
    pub(crate) fn deposit(&self) {
        self.budgets.with(&self.host, |host, current| host.slots[current].requests += 1);
    }

    /// An attempt begins.
    pub(crate) fn begin_attempt(&mut self) {
        self.awaits = true;
        self.budgets.with(&self.host, |host, _| host.awaited += 1);
    }

    /// The attempt ended: with an answer from a host that is well, without, or in a way that says nothing of the host.
    pub(crate) fn end_attempt(&mut self, answered: Option<bool>) {
        let awaited = u64::from(std::mem::take(&mut self.awaits));
        self.budgets.with(&self.host, |host, current| {
            host.awaited = host.awaited.saturating_sub(awaited);
            if let Some(answered) = answered {
                host.slots[current].ended += 1;
                host.slots[current].answered += u64::from(answered);
            }
        });
    }

    /// Takes a retry out of the budget; `false` when it is spent.
    pub(crate) fn withdraw(&self) -> bool {
        self.budgets.with(&self.host, |host, current| {
            let allowed = self.budgets.sum(host).left > 0;
            host.slots[current].retries += u64::from(allowed);
            allowed
        })
    }
}

impl Drop for Spender<'_> {
    fn drop(&mut self) {
        self.end_attempt(None);
        self.budgets.with(&self.host, |host, current| {
            // Also when it leaves: an operation that took nine seconds was under way in each of them.
            host.note_under_way(current);
            host.under_way = host.under_way.saturating_sub(1);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: &str = "http://shop.example:80";

    /// A request that fails and asks for one retry, at a host that is down.
    fn failing_request(budgets: &Budgets) -> bool {
        let mut spender = budgets.enter(HOST);
        spender.deposit();
        spender.begin_attempt();
        spender.end_attempt(Some(false));
        spender.withdraw()
    }

    #[tokio::test(start_paused = true)]
    async fn at_a_host_that_is_down_a_busy_client_keeps_the_share_exactly() {
        let budgets = Budgets::new(0.1, 10).unwrap();
        let mut retries = 0;
        for _ in 0..60_000 {
            retries += u32::from(failing_request(&budgets));
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        assert!((5_900..=6_000).contains(&retries), "{retries}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_quiet_client_may_retry_up_to_the_floor() {
        let budgets = Budgets::new(0.1, 10).unwrap();
        let only = budgets.enter(HOST);
        only.deposit();
        let first: Vec<bool> = (0..12).map(|_| only.withdraw()).collect();
        assert_eq!(first.iter().filter(|allowed| **allowed).count(), 10);
        assert_eq!(budgets.state(HOST), BudgetState { requests: 1, retries: 10, left: 0 });
        tokio::time::advance(Duration::from_secs(9)).await;
        assert!(!only.withdraw());
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(only.withdraw(), "what was spent ten seconds ago has lapsed");
    }

    #[tokio::test(start_paused = true)]
    async fn requests_that_succeed_give_nothing_back_beyond_their_share() {
        let budgets = Budgets::new(0.1, 0).unwrap();
        let spender = budgets.enter(HOST);
        spender.deposit();
        assert!(!spender.withdraw());
        (0..8).for_each(|_| budgets.enter(HOST).deposit());
        drop(budgets.enter(HOST));
        assert!(!spender.withdraw(), "what was never sent earns nothing");
        budgets.enter(HOST).deposit();
        assert!(spender.withdraw() && !spender.withdraw());
    }

    #[tokio::test(start_paused = true)]
    async fn the_floor_grows_with_what_is_under_way_at_a_host_that_answers() {
        let budgets = Budgets::new(0.1, 10).unwrap();
        let mut batch: Vec<_> = (0..100).map(|_| budgets.enter(HOST)).collect();
        batch.iter_mut().for_each(Spender::begin_attempt);
        // The failures are there first, as they are.
        batch[..40].iter_mut().for_each(|spender| spender.end_attempt(Some(false)));
        assert_eq!(budgets.state(HOST).left, 300, "more are awaited than have failed");
        batch[40..80].iter_mut().for_each(|spender| spender.end_attempt(Some(false)));
        assert_eq!(budgets.state(HOST).left, 10, "most have failed and none was answered");
        batch[80..].iter_mut().for_each(|spender| spender.end_attempt(Some(true)));
        assert_eq!(budgets.state(HOST).left, 300);
        let taken = batch.iter().flat_map(|spender| (0..4).map(|_| spender.withdraw())).filter(|taken| *taken).count();
        assert_eq!(taken, 300);
        drop(batch);
        assert_eq!(budgets.state(HOST).left, 0, "what was spent stays spent");
    }

    #[tokio::test(start_paused = true)]
    async fn a_host_that_is_down_does_not_cost_another_one_its_retries() {
        let budgets = Budgets::new(0.1, 10).unwrap();
        while failing_request(&budgets) {}
        assert_eq!(budgets.state(HOST).left, 0);
        assert!(budgets.enter("http://other.example:80").withdraw());
        assert_eq!(budgets.states().len(), 2);
        (0..2 * MOST_HOSTS).for_each(|number| drop(budgets.enter(&number.to_string())));
        assert_eq!(budgets.states().len(), MOST_HOSTS);
    }

    #[test]
    fn racing_tasks_cannot_take_the_last_token_twice() {
        let budgets = Budgets::new(0.1, 100).unwrap();
        let barrier = std::sync::Barrier::new(8);
        let spend = || {
            let spender = budgets.enter(HOST);
            barrier.wait();
            (0..50).filter(|_| spender.withdraw()).count()
        };
        let taken: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(spend)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(taken, 100);
    }

    #[test]
    fn a_budget_without_end_is_refused() {
        for share in [-0.1, 10.1, f64::NAN, f64::INFINITY] {
            assert!(Budgets::new(share, 10).is_err(), "{share}");
        }
        assert!(Budgets::new(0.1, u32::MAX).is_err());
    }
}
