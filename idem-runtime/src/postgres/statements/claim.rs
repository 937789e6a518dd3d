//! What begins and ends the transaction of a claim, each in one round trip.
//!
//! What ends it ends with `COMMIT AND CHAIN` or `ROLLBACK AND CHAIN`: sqlx counts open transactions by itself and knows nothing of
//! what a statement of many commands has ended. The empty transaction that is chained keeps its count right, and ends together with
//! the pool's own ping, after the answer has gone out.

use std::time::Duration;

use sqlx::SqlStr;

use super::literal::{push_bytes, push_condition, push_id, push_text, safe};
use super::mark::AS_BEGUN;
use super::{Isolation, Mark, Statements};
use crate::fingerprint::Fingerprint;
use crate::operation_id::OperationId;

/// An outcome on its way into the table.
pub(crate) struct NewOutcome<'a> {
    pub(crate) id: &'a OperationId,
    pub(crate) fingerprint: &'a Fingerprint,
    pub(crate) status: u16,
    pub(crate) headers: &'a [u8],
    pub(crate) body: &'a [u8],
    pub(crate) ttl: Duration,
    /// The look-up saw a row whose retention is over: it makes room.
    pub(crate) replaces_expired: bool,
}

/// The outcome of an operation whose effects are not known.
pub(crate) struct Unknown<'a> {
    pub(crate) id: &'a OperationId,
    pub(crate) fingerprint: &'a Fingerprint,
    /// For the person who frees the key.
    pub(crate) reason: &'a str,
}

impl Statements {
    /// Begins the transaction of `mark`. `durable` for an operation of several steps.
    pub(crate) fn begin(&self, mark: &Mark, isolation: Option<Isolation>, lease: Duration, durable: bool) -> SqlStr {
        safe(mark.begin(isolation, lease, durable))
    }

    /// Stores the outcome and commits.
    ///
    /// COMMIT must not follow an insert that did nothing, so this insert fails on a live row (23505).
    pub(crate) fn complete(&self, outcome: &NewOutcome<'_>, mark: &Mark) -> SqlStr {
        let status = mark.guarded(&outcome.status.to_string(), &self.schema);
        safe(format!("{AS_BEGUN}; {}; COMMIT AND CHAIN", self.insert(outcome, &status)))
    }

    /// Commits what has no outcome to store.
    #[cfg(feature = "axum")]
    pub(crate) fn commit(&self, mark: &Mark) -> SqlStr {
        safe(format!("{AS_BEGUN}; SELECT {}; COMMIT AND CHAIN", mark.guarded("1", &self.schema)))
    }

    /// Rolls the handler's writes back, asks whether they are gone, and goes on with `then` in the next transaction.
    pub(crate) fn roll_back(&self, mark: &Mark, then: &str) -> SqlStr {
        safe(format!(
            "{AS_BEGUN}; SELECT {guard}; ROLLBACK AND CHAIN; {witness}{then}",
            guard = mark.guarded("1", &self.schema),
            witness = mark.not_committed(&self.schema),
        ))
    }

    /// The same for a transaction that a failed statement has aborted, which answers nothing before its rollback.
    pub(crate) fn roll_back_failed(&self, mark: &Mark, then: &str) -> SqlStr {
        safe(format!("ROLLBACK AND CHAIN; {}{then}", mark.not_committed(&self.schema)))
    }

    /// Asks whether somebody has committed the transaction, which has ended.
    pub(crate) fn ask_the_witness(&self, mark: &Mark) -> SqlStr {
        safe(mark.not_committed(&self.schema))
    }

    /// Whatever is open.
    pub(crate) fn roll_back_all(&self, mark: &Mark) -> SqlStr {
        safe(format!("ROLLBACK; {}", mark.not_committed(&self.schema)))
    }

    /// Stores a refusal, after the rollback. For an instant the key's lock was free; if a rival has completed in it, the insert
    /// fails and the rival's outcome is the answer.
    pub(crate) fn refusal(&self, outcome: &NewOutcome<'_>, lock: i64) -> String {
        let insert = self.insert(outcome, &outcome.status.to_string());
        format!("; SELECT pg_catalog.pg_try_advisory_xact_lock({lock}); {insert}; COMMIT AND CHAIN")
    }

    /// Stores, in a transaction of its own, that the effects are not known. An outcome that somebody else has stored stays; what is
    /// in progress ends.
    ///
    /// It is kept until a person frees the key.
    pub(crate) fn store_unknown(&self, unknown: &Unknown<'_>) -> SqlStr {
        let table = &self.table;
        let mut sql = String::from("BEGIN READ WRITE; ");
        self.push_delete_expired(&mut sql, unknown.id);
        sql.push_str(&format!(
            "INSERT INTO {table} AS k (expires_at, started_at, status, scope, key, fingerprint, headers, body, failure) \
             VALUES ('infinity', pg_catalog.clock_timestamp(), 0, "
        ));
        push_id(&mut sql, unknown.id, ", ");
        sql.push_str(", ");
        push_bytes(&mut sql, unknown.fingerprint);
        sql.push_str(", '', '', ");
        push_text(&mut sql, unknown.reason);
        // An operation of several steps that another attempt has taken over is in progress: it must not go on, either.
        sql.push_str(
            ") ON CONFLICT (scope, key) DO UPDATE SET expires_at = EXCLUDED.expires_at, status = 0, headers = '', body = '', \
             failure = EXCLUDED.failure, lease_expires_at = NULL, recover_at = NULL, token = NULL, attempt = NULL, \
             recoveries = NULL, recovery_points = NULL, request = NULL WHERE k.status IS NULL; COMMIT",
        );
        safe(sql)
    }

    pub(super) fn push_delete_expired(&self, sql: &mut String, id: &OperationId) {
        sql.push_str(&format!("DELETE FROM {} WHERE ", self.table));
        push_condition(sql, id);
        sql.push_str(" AND expires_at OPERATOR(pg_catalog.<=) pg_catalog.clock_timestamp(); ");
    }

    fn insert(&self, outcome: &NewOutcome<'_>, status: &str) -> String {
        let table = &self.table;
        let mut sql = String::with_capacity(768 + 2 * (outcome.headers.len() + outcome.body.len()));
        if outcome.replaces_expired {
            self.push_delete_expired(&mut sql, outcome.id);
        }
        sql.push_str(&format!(
            "INSERT INTO {table} (expires_at, status, scope, key, fingerprint, headers, body) \
             VALUES (pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) interval '{ttl} s', {status}, ",
            ttl = outcome.ttl.as_secs_f64(),
        ));
        push_id(&mut sql, outcome.id, ", ");
        for bytes in [outcome.fingerprint.as_slice(), outcome.headers, outcome.body] {
            sql.push_str(", ");
            push_bytes(&mut sql, bytes);
        }
        sql.push(')');
        sql
    }
}
