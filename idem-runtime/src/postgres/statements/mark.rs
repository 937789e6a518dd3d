//! Whether a transaction is still the one that was begun for a claim, and whether somebody has committed it.
//!
//! A handler's helper may run `COMMIT` or `ROLLBACK` where no compiler sees it. Two marks tell, both made in the message that
//! begins the transaction. The *claim* is a setting local to the transaction, with a value of this transaction alone: in any other
//! transaction it is gone. The *witness* is the same value, set for the session inside the transaction: such a setting survives
//! its transaction's commit and nothing else, so that after a rollback it is there if, and only if, somebody committed before.

use super::Isolation;
use std::time::Duration;

/// What marks one transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mark {
    /// What no other transaction has. In SQL, sixteen hexadecimal digits.
    nonce: u64,
    /// The advisory lock that the transaction holds. It outlives `RESET ALL`, which takes both marks away.
    lock: i64,
    /// Whether the lock is the transaction's alone, and no key's.
    is_own: bool,
}

impl Mark {
    /// For the transaction that holds a key's lock.
    pub(crate) fn of_key(lock: i64) -> Self {
        Self { nonce: fastrand::u64(..), lock, is_own: false }
    }

    /// For a transaction that holds no key's lock: it gets a lock of its own.
    pub(crate) fn of_its_own() -> Self {
        Self { is_own: true, ..Self::of_key(fastrand::i64(..)) }
    }

    /// For another try on another connection: the server may still hold the first one's transaction, and a lock of its own with it.
    pub(crate) fn renew(&mut self) {
        if self.is_own {
            *self = Self::of_its_own();
        }
    }

    /// The claim's value in a transaction that got its lock.
    pub(crate) fn claimed(&self) -> String {
        format!("{:016x}t", self.nonce)
    }

    /// Begins a transaction, tries the lock and sets the marks, in one round trip. The server ends the transaction when it sits idle
    /// for `lease`.
    ///
    /// The lock's answer is part of the claim's value, so that the look-up, a statement of its own with a newer snapshot, can
    /// read it. Who began is remembered for the statements that end it: the handler may change the role.
    pub(super) fn begin(&self, isolation: Option<Isolation>, lease: Duration, durable: bool) -> String {
        let Self { nonce, lock, .. } = self;
        let isolation = Isolation::clause(isolation);
        // Postgres counts in milliseconds, up to 24 days.
        let lease = lease.as_millis().min(i32::MAX as u128);
        let durable = if durable { DURABLE } else { "" };
        format!(
            "BEGIN{isolation} READ WRITE; \
             SELECT pg_catalog.set_config('idem.claim', pg_catalog.concat('{nonce:016x}', pg_catalog.pg_try_advisory_xact_lock({lock})), true), \
                    pg_catalog.set_config('idem.witness', '{nonce:016x}', false), \
                    pg_catalog.set_config('idem.session', pg_catalog.current_setting('session_authorization'), true), \
                    pg_catalog.set_config('idem.role', pg_catalog.current_setting('role'), true){durable}; \
             SET LOCAL idle_in_transaction_session_timeout = {lease}; \
             SET LOCAL client_connection_check_interval = 2000"
        )
    }

    /// `value` in the transaction that was begun, still open; an error of ours in any other.
    pub(super) fn guarded(&self, value: &str, schema: &str) -> String {
        let Self { nonce, lock, .. } = self;
        format!(
            "CASE WHEN pg_catalog.current_setting('idem.claim', true) OPERATOR(pg_catalog.=) '{nonce:016x}t' THEN {value} \
             ELSE {schema}.fail('IDM01', {lock}) END"
        )
    }

    /// An error of ours if somebody has committed the transaction. To be asked after its end.
    pub(super) fn not_committed(&self, schema: &str) -> String {
        let Self { nonce, lock, .. } = self;
        format!(
            "SELECT CASE WHEN pg_catalog.current_setting('idem.witness', true) OPERATOR(pg_catalog.=) '{nonce:016x}' \
             THEN {schema}.fail('IDM02', {lock}) END"
        )
    }
}

/// Where the database does without waiting for the disk, a crash could forget that a call to another system was made.
const DURABLE: &str = ", \
    CASE WHEN pg_catalog.current_setting('synchronous_commit') OPERATOR(pg_catalog.=) 'off' \
         THEN pg_catalog.set_config('synchronous_commit', 'local', true) END";

/// Our statements run as whoever began the transaction, whatever `SET ROLE` the handler has run since. Where the marks are
/// gone, nothing is changed.
pub(super) const AS_BEGUN: &str = "\
    SELECT CASE WHEN pg_catalog.current_setting('idem.session', true) OPERATOR(pg_catalog.<>) '' \
                 AND pg_catalog.current_setting('idem.session', true) \
                     OPERATOR(pg_catalog.<>) pg_catalog.current_setting('session_authorization') \
                THEN pg_catalog.set_config('session_authorization', pg_catalog.current_setting('idem.session'), false) END, \
           CASE WHEN pg_catalog.current_setting('idem.role', true) OPERATOR(pg_catalog.<>) '' \
                 AND pg_catalog.current_setting('idem.role', true) OPERATOR(pg_catalog.<>) pg_catalog.current_setting('role') \
                THEN pg_catalog.set_config('role', pg_catalog.current_setting('idem.role'), false) END";
