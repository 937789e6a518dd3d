//! Effects outside of the database.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
    calls: Arc<Mutex<Calls>>,
}

#[derive(Debug, Default)]
struct Calls {
    counts: BTreeMap<String, u64>,
    /// The next call is to fail.
    fails: bool,
    /// A call has failed.
    failed: bool,
}

/// The provider could not be reached: see [`ExternalCalls::call`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProviderDown;

impl ExternalCalls {
    /// Nothing called yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Notes a call; returns how many carried this key, with this one.
    pub fn record(&self, key: &str) -> u64 {
        let mut calls = self.calls();
        let count = calls.counts.entry(key.to_owned()).or_default();
        *count += 1;
        *count
    }

    /// Notes a call to a provider that is down when the [contract check](crate::contract) wants it to be: once, to see
    /// that the handler's failure is no outcome.
    ///
    /// # Errors
    /// If the provider is down. Then nothing was noted.
    pub fn call(&self, key: &str) -> Result<u64, ProviderDown> {
        let mut calls = self.calls();
        if std::mem::take(&mut calls.fails) {
            calls.failed = true;
            return Err(ProviderDown);
        }
        drop(calls);
        Ok(self.record(key))
    }

    /// The calls by key.
    pub fn counts(&self) -> BTreeMap<String, u64> {
        self.calls().counts.clone()
    }

    /// What follows the operation's key in the keys that contain it.
    pub(crate) fn derived_from(&self, key: &str) -> Vec<String> {
        let derived = |call: &String| call.contains(key).then(|| call.replacen(key, "<key>", 1));
        self.counts().keys().filter_map(derived).collect()
    }

    /// How many keys were ever used.
    pub(crate) fn keys(&self) -> usize {
        self.calls().counts.len()
    }

    /// How many calls were made.
    pub(crate) fn total(&self) -> u64 {
        self.calls().counts.values().sum()
    }

    /// Lets the next call fail.
    pub(crate) fn fail_once(&self) {
        let mut calls = self.calls();
        (calls.fails, calls.failed) = (true, false);
    }

    /// Whether a call failed since it was [told to](Self::fail_once); from now on, none does.
    pub(crate) fn has_failed(&self) -> bool {
        let mut calls = self.calls();
        calls.fails = false;
        calls.failed
    }

    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Display for ProviderDown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the provider is down")
    }
}

impl std::error::Error for ProviderDown {}
