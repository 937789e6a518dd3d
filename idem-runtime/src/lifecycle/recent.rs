//! A retry should cost what reading one row costs.
//!
//! Most retries come back to the process that ran the operation, soon. Whoever finds its key here asks with a single
//! statement outside of a transaction first. It is a hint: a key that is found here and not in the table is claimed like any
//! other, and one that is not found here is claimed and looked up as ever.

use std::sync::atomic::{AtomicI64, Ordering};

/// 512 KiB, and no bookkeeping: a later operation pushes an earlier one out of its place.
const PLACES: usize = 65_536;

/// The lock numbers of operations that were lately seen completed.
#[derive(Debug)]
pub(crate) struct Recent(Box<[AtomicI64]>);

impl Default for Recent {
    fn default() -> Self {
        Self((0..PLACES).map(|_| AtomicI64::new(0)).collect())
    }
}

impl Recent {
    pub(crate) fn note(&self, lock: i64) {
        self.place(lock).store(lock, Ordering::Relaxed);
    }

    pub(crate) fn holds(&self, lock: i64) -> bool {
        self.place(lock).load(Ordering::Relaxed) == lock
    }

    /// Lock numbers are digests: their low bits are as good as any.
    fn place(&self, lock: i64) -> &AtomicI64 {
        &self.0[lock as usize % PLACES]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_operation_pushes_an_earlier_one_out() {
        let recent = Recent::default();
        let (first, second) = (-7, -7 + PLACES as i64);
        assert!(!recent.holds(first));
        recent.note(first);
        assert!(recent.holds(first) && !recent.holds(second));
        recent.note(second);
        assert!(recent.holds(second) && !recent.holds(first));
    }
}
