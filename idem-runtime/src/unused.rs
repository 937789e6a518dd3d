//! A handler that writes through a pool of its own looks as if it worked, until a retry writes twice. What the compiler cannot see of
//! it shows when it commits a transaction that it has never used.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often a handler is warned of at most.
const PAUSE: Duration = Duration::from_secs(60);

/// When each handler was last warned of.
#[derive(Debug, Default)]
pub(crate) struct Unused(Mutex<HashMap<&'static str, Instant>>);

impl Unused {
    /// Counts it, and says whether it is to be logged.
    pub(crate) fn is_due(&self, handler: &'static str) -> bool {
        #[cfg(feature = "metrics")]
        metrics::counter!("idem_unused_transactions_total", "handler" => handler).increment(1);
        let mut warned = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let due = warned.get(handler).is_none_or(|last| now.duration_since(*last) >= PAUSE);
        if due {
            warned.insert(handler, now);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_handler_is_warned_of_once_a_minute() {
        let unused = Unused::default();
        assert!(unused.is_due("orders"));
        assert!(!unused.is_due("orders"));
        assert!(unused.is_due("refunds"));
    }
}
