//! What this process is sending right now, by operation and key, and what it has lost sight of.
//!
//! It keeps two questions apart that the journal alone cannot: what is under way, and what was left behind. It keeps two
//! requests with the same key from undoing each other's record, and from telling their callers that nothing has
//! happened while the other one's answer is out or lost. And it remembers what has or may have happened for as long as
//! the process lives: after a lost answer, or a good one, a refusal of the same key does not mean that nothing has
//! happened, whether or not there is a journal.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::key::Key;

/// The operation's name and its key: what a record is known by.
pub(crate) type Id = (String, Key);

/// How many operations that have or may have happened are remembered; the oldest are forgotten first.
const MOST_REMEMBERED: usize = 10_000;

#[derive(Debug, Default)]
pub(crate) struct UnderWay {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    operations: HashMap<Id, Operation>,
    /// Operations that are remembered though nobody sends them any more, in the order of their end.
    remembered: VecDeque<Id>,
}

#[derive(Debug, Default)]
struct Operation {
    senders: usize,
    /// A request of it was carried out, or ended and nobody knows how.
    may_have_happened: bool,
    /// Held while the record is written or struck off.
    gate: Arc<tokio::sync::Mutex<()>>,
}

/// One request of an operation. Dropping it, also when the caller drops the request, takes it off the list.
#[derive(Debug)]
pub(crate) struct Sending {
    under_way: Arc<UnderWay>,
    id: Id,
    gate: Arc<tokio::sync::Mutex<()>>,
    /// Whether the operation has or may have happened if this request ends now.
    fate_unknown: bool,
}

impl UnderWay {
    pub(crate) fn enter(self: &Arc<Self>, id: Id) -> Sending {
        let mut table = self.table();
        let operation = table.operations.entry(id.clone()).or_default();
        operation.senders += 1;
        let gate = Arc::clone(&operation.gate);
        Sending { under_way: Arc::clone(self), id, gate, fate_unknown: false }
    }

    /// Whether the operation is being sent right now.
    pub(crate) fn contains(&self, id: &Id) -> bool {
        self.table().operations.get(id).is_some_and(|operation| operation.senders > 0)
    }

    /// Whether an operation with this key is being sent, or has or may have happened.
    pub(crate) fn has_seen(&self, key: &Key) -> bool {
        self.table().operations.keys().any(|(_, seen)| seen == key)
    }

    /// The operation's outcome was found by asking: what is sent now starts from what its caller knows.
    pub(crate) fn found(&self, id: &Id) {
        let mut table = self.table();
        if let Some(operation) = table.operations.get_mut(id) {
            operation.may_have_happened = false;
            if operation.senders == 0 {
                table.operations.remove(id);
            }
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn remember(&mut self, id: &Id) {
        self.remembered.push_back(id.clone());
        while self.remembered.len() > MOST_REMEMBERED {
            let Some(oldest) = self.remembered.pop_front() else { return };
            if self.operations.get(&oldest).is_some_and(|operation| operation.senders > 0) {
                self.remembered.push_back(oldest);
                return;
            }
            self.operations.remove(&oldest);
        }
    }
}

impl Sending {
    pub(crate) fn id(&self) -> &Id {
        &self.id
    }

    /// Keeps the operation's other requests from the record.
    pub(crate) async fn gate(&self) -> tokio::sync::OwnedMutexGuard<()> {
        Arc::clone(&self.gate).lock_owned().await
    }

    /// Whether the operation may have been carried out by another request of this client: one is under way, or was lost, or
    /// was carried out. Under the gate the answer holds: who comes later finds the record as it is left.
    pub(crate) fn others_may_have_done_it(&self) -> bool {
        let table = self.under_way.table();
        table.operations.get(&self.id).is_some_and(|operation| operation.senders > 1 || operation.may_have_happened)
    }

    /// What it means for the operation if this request ends now, however it ends.
    pub(crate) fn set_fate_unknown(&mut self, unknown: bool) {
        self.fate_unknown = unknown;
    }

    /// The operation was carried out, by whatever request.
    pub(crate) fn has_happened(&mut self) {
        self.fate_unknown = true;
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        let mut table = self.under_way.table();
        let Some(operation) = table.operations.get_mut(&self.id) else { return };
        operation.senders -= 1;
        let known_before = operation.may_have_happened;
        operation.may_have_happened |= self.fate_unknown;
        if operation.may_have_happened && !known_before {
            table.remember(&self.id);
        } else if operation.senders == 0 && !operation.may_have_happened {
            table.operations.remove(&self.id);
        }
    }
}
