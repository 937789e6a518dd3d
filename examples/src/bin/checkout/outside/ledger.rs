//! What was asked for and what was done, by key.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Json;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What is known of a key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Line {
    /// How often it was asked for.
    pub(crate) calls: u32,
    /// How often it was done.
    pub(crate) effects: u32,
    /// For how much, in cents, all of them together.
    pub(crate) amount_cents: i64,
    /// What it is about.
    pub(crate) about: String,
    /// The number under which money was taken.
    pub(crate) charge: Option<String>,
    #[serde(skip)]
    pub(super) request: Value,
    #[serde(skip)]
    pub(super) answer: Option<Value>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Ledger(Arc<Mutex<BTreeMap<String, Line>>>);

impl Ledger {
    pub(super) fn lines(&self) -> MutexGuard<'_, BTreeMap<String, Line>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn shown(&self) -> Json<BTreeMap<String, Line>> {
        Json(self.lines().clone())
    }
}
