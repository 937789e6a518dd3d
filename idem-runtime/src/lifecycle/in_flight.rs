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
use crate::operation_id::OperationId;

/// How far an operation in flight has come, for its duplicates.
#[derive(Debug)]
enum Progress<T> {
    /// The database is being asked: it may have completed long ago.
    LookingUp,
    /// The handler runs.
    Running,
    /// The outcome is stored. (A release drops the sender.)
    Stored(Arc<T>),
}

/// What a duplicate learns of the operation in flight.
#[derive(Debug)]
pub(crate) enum News<T> {
    /// The handler runs.
    Running,
    /// The outcome is stored.
    Stored(Arc<T>),
    /// Nothing was stored; the key is free.
    Released,
}

#[derive(Debug)]
struct InFlight<T> {
    fingerprint: Fingerprint,
    since: Instant,
    progress: watch::Receiver<Progress<T>>,
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
    progress: watch::Sender<Progress<T>>,
}

/// Waits for an operation of this process to end. Holds no connection.
#[derive(Debug)]
pub(crate) struct Waiter<T>(watch::Receiver<Progress<T>>);

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
                Entrance::Occupied { fingerprint: in_flight.fingerprint, waiter: Waiter(in_flight.progress.clone()) }
            }
            Entry::Vacant(entry) => {
                let (sender, progress) = watch::channel(Progress::LookingUp);
                entry.insert(InFlight { fingerprint, since: Instant::now(), progress });
                Entrance::Free(Ticket { operations: Arc::clone(&self.operations), id: id.clone(), progress: sender })
            }
        }
    }
}

impl<T> Ticket<T> {
    /// The handler starts: duplicates may be answered so.
    pub(crate) fn run(&self) {
        self.progress.send_replace(Progress::Running);
    }

    /// Hands the stored outcome to all who wait.
    pub(crate) fn end(self, stored: T) {
        self.progress.send_replace(Progress::Stored(Arc::new(stored)));
    }
}

impl<T> Drop for Ticket<T> {
    fn drop(&mut self) {
        lock(&self.operations).remove(&self.id);
    }
}

impl<T> Waiter<T> {
    /// Waits for the look-up, which takes as long as the database takes to answer.
    pub(crate) async fn looked_up(&mut self) -> News<T> {
        self.news(|progress| !matches!(progress, Progress::LookingUp)).await
    }

    /// Waits for the operation's end.
    pub(crate) async fn ended(&mut self) -> News<T> {
        self.news(|progress| matches!(progress, Progress::Stored(_))).await
    }

    async fn news(&mut self, enough: impl Fn(&Progress<T>) -> bool) -> News<T> {
        match self.0.wait_for(|progress| enough(progress)).await.as_deref() {
            Ok(Progress::Stored(stored)) => News::Stored(Arc::clone(stored)),
            Ok(_) => News::Running,
            Err(_) => News::Released,
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
        match registry.enter(&id(key), [0; 16], LEASE) {
            Entrance::Free(ticket) => ticket,
            _ => panic!("`{key}` must be free"),
        }
    }

    fn waiter(registry: &Registry<u8>, key: &str) -> Waiter<u8> {
        match registry.enter(&id(key), [1; 16], LEASE) {
            Entrance::Occupied { fingerprint, waiter } => {
                assert_eq!(fingerprint, [0; 16], "the fingerprint is the first one's");
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
        let (mut looking, mut waiting) = (waiter(&registry, "a"), waiter(&registry, "a"));
        ticket.run();
        assert!(matches!(looking.looked_up().await, News::Running));
        ticket.end(7);
        assert!(matches!(waiting.ended().await, News::Stored(stored) if *stored == 7));

        let ticket = free(&registry, "a");
        let mut waiting = waiter(&registry, "a");
        drop(ticket);
        assert!(matches!(waiting.looked_up().await, News::Released));
        drop(free(&registry, "a"));
    }

    #[test]
    fn an_entry_past_its_lease_is_left_to_the_database() {
        let registry = Registry::<u8>::default();
        let _ticket = free(&registry, "a");
        std::thread::sleep(Duration::from_millis(2));
        assert!(matches!(registry.enter(&id("a"), [0; 16], Duration::from_millis(1)), Entrance::Overdue));
    }
}
