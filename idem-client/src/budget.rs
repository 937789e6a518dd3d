//! The retry budget: what keeps a thousand patient clients from being the outage.
//!
//! A limit per request does not bound the load: when the server is down, every request fails, and four attempts each
//! are four times the traffic. The budget bounds retries as a share of all requests. Each first attempt puts its
//! share of a token into a bucket, each retry takes a whole one, tokens lapse after ten seconds, and an empty bucket
//! means: fail now. A client that sends little would never collect a token, so a floor of retries per ten seconds is
//! always allowed.
//!
//! The floor is the *greater of* and not added to the share, so a busy client keeps the share exactly. A retry is
//! spent for good: neither a success nor an "in flight" answer gives it back.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::limits::{SettingError, within};

const SLOTS: usize = 10;
const SLOT: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    number: u64,
    requests: u64,
    retries: u64,
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

#[derive(Debug)]
pub(crate) struct Budget {
    share: f64,
    floor: u64,
    started: Instant,
    slots: Mutex<[Slot; SLOTS]>,
}

impl Budget {
    pub(crate) fn new(share: f64, floor: u32) -> Result<Self, SettingError> {
        within("retry budget's share", share, 0.0, 10.0)?;
        within("retry budget's floor", floor, 0, 10_000)?;
        Ok(Self { share, floor: floor.into(), started: Instant::now(), slots: Mutex::default() })
    }

    /// Counts a first attempt.
    pub(crate) fn deposit(&self) {
        self.with_current(|slots, current| slots[current].requests += 1);
    }

    /// Takes a retry out of the budget; `false` when it is spent.
    pub(crate) fn withdraw(&self) -> bool {
        self.with_current(|slots, current| {
            let allowed = self.sum(slots).left > 0;
            slots[current].retries += u64::from(allowed);
            allowed
        })
    }

    pub(crate) fn state(&self) -> BudgetState {
        self.with_current(|slots, _| self.sum(slots))
    }

    fn sum(&self, slots: &[Slot; SLOTS]) -> BudgetState {
        let requests: u64 = slots.iter().map(|slot| slot.requests).sum();
        let retries: u64 = slots.iter().map(|slot| slot.retries).sum();
        #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let earned = (requests as f64 * self.share).floor() as u64;
        BudgetState { requests, retries, left: earned.max(self.floor).saturating_sub(retries) }
    }

    /// One lock around looking and taking: two tasks cannot both take the last token.
    fn with_current<T>(&self, act: impl FnOnce(&mut [Slot; SLOTS], usize) -> T) -> T {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.started.elapsed().as_secs() / SLOT.as_secs();
        for slot in slots.iter_mut() {
            if slot.number + (SLOTS as u64) <= now {
                *slot = Slot::default();
            }
        }
        let current = usize::try_from(now % SLOTS as u64).expect("less than ten");
        slots[current].number = now;
        act(&mut slots, current)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_busy_client_keeps_the_share_exactly() {
        let budget = Budget::new(0.1, 10).unwrap();
        let mut retries = 0;
        for _ in 0..60_000 {
            budget.deposit();
            retries += u32::from(budget.withdraw());
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        assert!((5_900..=6_000).contains(&retries), "{retries}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_quiet_client_may_retry_up_to_the_floor() {
        let budget = Budget::new(0.1, 10).unwrap();
        budget.deposit();
        let first: Vec<bool> = (0..12).map(|_| budget.withdraw()).collect();
        assert_eq!(first.iter().filter(|allowed| **allowed).count(), 10);
        assert_eq!(budget.state(), BudgetState { requests: 1, retries: 10, left: 0 });
        tokio::time::advance(Duration::from_secs(9)).await;
        assert!(!budget.withdraw());
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(budget.withdraw(), "what was spent ten seconds ago has lapsed");
    }

    #[tokio::test(start_paused = true)]
    async fn requests_that_succeed_give_nothing_back_beyond_their_share() {
        let budget = Budget::new(0.1, 0).unwrap();
        assert!(!budget.withdraw());
        (0..9).for_each(|_| budget.deposit());
        assert!(!budget.withdraw());
        budget.deposit();
        assert!(budget.withdraw() && !budget.withdraw());
    }

    #[test]
    fn racing_tasks_cannot_take_the_last_token_twice() {
        let budget = Budget::new(0.1, 100).unwrap();
        let barrier = std::sync::Barrier::new(8);
        let taken: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|_| {
                    scope.spawn(|| {
                        barrier.wait();
                        (0..50).filter(|_| budget.withdraw()).count()
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(taken, 100);
    }

    #[test]
    fn a_budget_without_end_is_refused() {
        for share in [-0.1, 10.1, f64::NAN, f64::INFINITY] {
            assert!(Budget::new(share, 10).is_err(), "{share}");
        }
        assert!(Budget::new(0.1, u32::MAX).is_err());
    }
}
