//! A storm of retries of one key must not become a storm on the database.
//!
//! Operations in flight in this process, with what a duplicate needs to be answered. It makes answers fast and decides
//! nothing: an entry that outlived its lease is passed over, and the primary key judges.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::fingerprint::Fingerprint;

/// A key within its scope.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct OperationId {
    pub(crate) scope: Arc<str>,
    pub(crate) key: Arc<str>,
}

/// How an operation in flight ended, for those who waited: with a stored outcome, or released.
#[derive(Debug)]
pub(crate) enum Ending<T> {
    Pending,
    Stored(Arc<T>),
}

#[derive(Debug)]
struct InFlight<T> {
    fingerprint: Fingerprint,
    since: Instant,
    ending: watch::Receiver<Ending<T>>,
}

/// The operations of this process in flight.
#[derive(Debug)]
pub(crate) struct Registry<T> {
    operations: Arc<Mutex<HashMap<OperationId, InFlight<T>>>>,
}

/// What a request finds when it comes in.
pub(crate) enum Entrance<T> {
    /// Nobody here runs it. Dropping the ticket lets the next one in.
    Free(Ticket<T>),
    /// It runs here with this fingerprint.
    Occupied { fingerprint: Fingerprint, waiter: Waiter<T> },
    /// It has run here for longer than its lease: only the database knows.
    Overdue,
}

/// The entry of an operation that runs.
#[derive(Debug)]
pub(crate) struct Ticket<T> {
    operations: Arc<Mutex<HashMap<OperationId, InFlight<T>>>>,
    id: OperationId,
    ending: watch::Sender<Ending<T>>,
}

/// Waits for an operation of this process to end. Holds no connection.
#[derive(Debug)]
pub(crate) struct Waiter<T>(watch::Receiver<Ending<T>>);

impl<T> Default for Registry<T> {
    fn default() -> Self {
        Self { operations: Arc::default() }
    }
}

impl<T> Registry<T> {
    pub(crate) fn enter(&self, id: &OperationId, fingerprint: Fingerprint, lease: Duration) -> Entrance<T> {
        match lock(&self.operations).entry(id.clone()) {
            Entry::Occupied(entry) if entry.get().since.elapsed() > lease => Entrance::Overdue,
            Entry::Occupied(entry) => {
                let in_flight = entry.get();
                Entrance::Occupied { fingerprint: in_flight.fingerprint, waiter: Waiter(in_flight.ending.clone()) }
            }
            Entry::Vacant(entry) => {
                let (sender, ending) = watch::channel(Ending::Pending);
                entry.insert(InFlight { fingerprint, since: Instant::now(), ending });
                Entrance::Free(Ticket { operations: Arc::clone(&self.operations), id: id.clone(), ending: sender })
            }
        }
    }
}

impl<T> Ticket<T> {
    /// Hands the stored outcome to all who wait.
    pub(crate) fn end(self, stored: T) {
        self.ending.send_replace(Ending::Stored(Arc::new(stored)));
    }
}

impl<T> Drop for Ticket<T> {
    fn drop(&mut self) {
        lock(&self.operations).remove(&self.id);
    }
}

impl<T> Waiter<T> {
    /// The stored outcome, or `None` when the operation was released.
    pub(crate) async fn ended(mut self) -> Option<Arc<T>> {
        match self.0.wait_for(|ending| matches!(ending, Ending::Stored(_))).await.as_deref() {
            Ok(Ending::Stored(stored)) => Some(Arc::clone(stored)),
            _ => None,
        }
    }
}

/// A panic while the lock is held cannot leave the map half-changed.
fn lock<T>(operations: &Mutex<T>) -> MutexGuard<'_, T> {
    operations.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(60);

    fn id(key: &str) -> OperationId {
        OperationId { scope: "s".into(), key: key.into() }
    }

    fn free(registry: &Registry<u8>, key: &str) -> Ticket<u8> {
        match registry.enter(&id(key), [0; 32], LEASE) {
            Entrance::Free(ticket) => ticket,
            _ => panic!("`{key}` must be free"),
        }
    }

    fn waiter(registry: &Registry<u8>, key: &str) -> Waiter<u8> {
        match registry.enter(&id(key), [1; 32], LEASE) {
            Entrance::Occupied { fingerprint, waiter } => {
                assert_eq!(fingerprint, [0; 32], "the fingerprint is the first one's");
                waiter
            }
            _ => panic!("`{key}` must be occupied"),
        }
    }

    #[tokio::test]
    async fn waiters_get_the_outcome_or_the_release() {
        let registry = Registry::default();
        let ticket = free(&registry, "a");
        drop(free(&registry, "b"));
        let waiting = waiter(&registry, "a");
        ticket.end(7);
        assert_eq!(waiting.ended().await.as_deref(), Some(&7));

        let ticket = free(&registry, "a");
        let waiting = waiter(&registry, "a");
        drop(ticket);
        assert!(waiting.ended().await.is_none());
        drop(free(&registry, "a"));
    }

    #[test]
    fn an_entry_past_its_lease_is_left_to_the_database() {
        let registry = Registry::<u8>::default();
        let _ticket = free(&registry, "a");
        std::thread::sleep(Duration::from_millis(2));
        assert!(matches!(registry.enter(&id("a"), [0; 32], Duration::from_millis(1)), Entrance::Overdue));
    }
}
