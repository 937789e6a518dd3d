//! Effects outside of the database.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Counts calls to another system by the key that they carry.
///
/// A provider that honours idempotency keys turns any number of calls with one derived key into one effect, so a call
/// may be repeated, and must never be made with a second key. Record in the fake provider of the test:
///
/// ```
/// let calls = idem_testing::ExternalCalls::new();
/// assert_eq!(calls.record("8e03978e:charge"), 1);
/// assert_eq!(calls.record("8e03978e:charge"), 2);
/// assert_eq!(calls.counts()["8e03978e:charge"], 2);
/// ```
#[derive(Clone, Debug, Default)]
pub struct ExternalCalls {
    counts: Arc<Mutex<BTreeMap<String, u64>>>,
}

impl ExternalCalls {
    /// Nothing called yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Notes a call; returns how many carried this key, with this one.
    pub fn record(&self, key: &str) -> u64 {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(key.to_owned()).or_default();
        *count += 1;
        *count
    }

    /// The calls by key.
    pub fn counts(&self) -> BTreeMap<String, u64> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What follows the operation's key in the keys that were derived from it.
    pub(crate) fn derived_from(&self, key: &str) -> Vec<String> {
        let derived = |call: &String| Some(call.strip_prefix(key)?.strip_prefix(':')?.to_owned());
        self.counts().keys().filter_map(derived).collect()
    }
}
