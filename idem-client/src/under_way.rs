//! What this process is sending right now, by the journal's records.
//!
//! It keeps two questions apart that the journal alone cannot: what is under way, and what was left behind. And it keeps
//! two requests with the same key from undoing each other's record.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::key::Key;

/// The key and the target of a record.
pub(crate) type Id = (Key, String);

#[derive(Debug, Default)]
pub(crate) struct UnderWay {
    operations: Mutex<HashMap<Id, Operation>>,
}

#[derive(Debug, Default)]
struct Operation {
    senders: usize,
    /// Held while the record is written or struck off.
    gate: Arc<tokio::sync::Mutex<()>>,
}

/// One request of an operation. Dropping it, also when the caller drops the request, takes it off the list.
#[derive(Debug)]
pub(crate) struct Sending<'a> {
    under_way: &'a UnderWay,
    id: Id,
    gate: Arc<tokio::sync::Mutex<()>>,
}

impl UnderWay {
    pub(crate) fn enter(&self, id: Id) -> Sending<'_> {
        let mut operations = self.operations();
        let operation = operations.entry(id.clone()).or_default();
        operation.senders += 1;
        let gate = Arc::clone(&operation.gate);
        Sending { under_way: self, id, gate }
    }

    pub(crate) fn contains(&self, id: &Id) -> bool {
        self.operations().contains_key(id)
    }

    fn operations(&self) -> MutexGuard<'_, HashMap<Id, Operation>> {
        self.operations.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sending<'_> {
    pub(crate) fn id(&self) -> &Id {
        &self.id
    }

    /// Keeps the operation's other requests from the record.
    pub(crate) async fn gate(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.gate.lock().await
    }

    /// Whether no other request of this operation is under way. Under the gate the answer holds: who comes later
    /// finds the record as it is left.
    pub(crate) fn is_alone(&self) -> bool {
        self.under_way.operations().get(&self.id).is_none_or(|operation| operation.senders == 1)
    }
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        let mut operations = self.under_way.operations();
        if let Some(operation) = operations.get_mut(&self.id) {
            operation.senders -= 1;
            if operation.senders == 0 {
                operations.remove(&self.id);
            }
        }
    }
}
