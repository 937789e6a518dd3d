//! Every statement of the claim protocol, in one place: what they say is the promise.
//!
//! Two kinds. The look-up is a prepared statement with binds. What begins and ends the transaction goes out in the
//! simple protocol, several commands in one round trip; its values are hexadecimal digits or integers, so nothing in
//! them can end a literal, whatever `standard_conforming_strings` says.

use std::time::Duration;

use sqlx::{AssertSqlSafe, SqlSafeStr, SqlStr};

use crate::fingerprint::{Fingerprint, sha256};
use crate::hex;
use crate::registry::OperationId;

/// How a transaction is isolated; the database's default where an attribute names none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Isolation {
    /// `READ COMMITTED`
    ReadCommitted,
    /// `REPEATABLE READ`
    RepeatableRead,
    /// `SERIALIZABLE`
    Serializable,
}

impl Isolation {
    fn clause(isolation: Option<Self>) -> &'static str {
        match isolation {
            None => "",
            Some(Self::ReadCommitted) => " ISOLATION LEVEL READ COMMITTED",
            Some(Self::RepeatableRead) => " ISOLATION LEVEL REPEATABLE READ",
            Some(Self::Serializable) => " ISOLATION LEVEL SERIALIZABLE",
        }
    }
}

/// An outcome on its way into the table.
pub(crate) struct Outcome<'a> {
    pub(crate) id: &'a OperationId,
    pub(crate) fingerprint: &'a Fingerprint,
    pub(crate) status: u16,
    pub(crate) headers: &'a [u8],
    pub(crate) body: &'a [u8],
    pub(crate) ttl: Duration,
    /// The look-up saw a row whose retention is over: it makes room.
    pub(crate) replaces_expired: bool,
}

/// A multi-step operation and what one statement adds to it.
pub(crate) struct Steps<'a> {
    pub(crate) id: &'a OperationId,
    pub(crate) token: i64,
    pub(crate) lease: Duration,
    /// The recovery points to append; may be empty.
    pub(crate) recovery_points: &'a [u8],
}

/// What the first commit of a multi-step operation says besides.
pub(crate) struct NewAttempt<'a> {
    pub(crate) fingerprint: &'a Fingerprint,
    pub(crate) request: &'a [u8],
    pub(crate) replaces_expired: bool,
}

/// The statements with the schema's name filled in.
#[derive(Debug)]
pub(crate) struct Statements {
    table: String,
    schema: String,
    pub(crate) look_up: SqlStr,
    pub(crate) sweep: SqlStr,
    /// An owner's statements: each touches its row only while the token is its own.
    pub(crate) record: SqlStr,
    pub(crate) renew: SqlStr,
    pub(crate) give_back: SqlStr,
    pub(crate) complete_steps: SqlStr,
}

impl Statements {
    pub(crate) fn new(schema: &str) -> Self {
        let quoted = format!("\"{}\"", schema.replace('"', "\"\""));
        let table = format!("{quoted}.idempotency_keys");
        let look_up = format!(
            "SELECT coalesce(current_setting('idem.claim', true) = 'true', false) AS claimed, \
                    k.expires_at <= clock_timestamp() AS expired, \
                    k.fingerprint, k.status, k.headers, k.body, \
                    k.lease_expires_at > clock_timestamp() AS leased, k.token, k.recovery_points \
             FROM (SELECT 1) AS one LEFT JOIN {table} AS k ON k.scope = $1 AND k.key = $2"
        );
        let sweep = format!(
            "DELETE FROM {table} WHERE ctid = ANY (ARRAY( \
                 SELECT ctid FROM {table} WHERE expires_at <= clock_timestamp() \
                 ORDER BY expires_at LIMIT $1 FOR UPDATE SKIP LOCKED))"
        );
        let owned = |set: &str| {
            safe(format!("UPDATE {table} SET {set} WHERE scope = $1 AND key = $2 AND token = $3 AND status IS NULL"))
        };
        let leased = "lease_expires_at = clock_timestamp() + make_interval(secs => $4)";
        Self {
            look_up: safe(look_up),
            sweep: safe(sweep),
            record: owned(&format!("{leased}, recovery_points = recovery_points || $5")),
            renew: owned(leased),
            give_back: owned("lease_expires_at = clock_timestamp()"),
            complete_steps: owned(
                "expires_at = clock_timestamp() + make_interval(secs => $4), status = $5, headers = $6, body = $7, \
                 started_at = NULL, lease_expires_at = NULL, recover_at = NULL, token = NULL, attempt = NULL, \
                 recoveries = NULL, recovery_points = NULL, request = NULL, failure = NULL",
            ),
            table,
            schema: schema.to_owned(),
        }
    }

    /// The advisory lock's number. Two keys that share one, 1 in 2^64, share a 409 and nothing else.
    pub(crate) fn lock_number(&self, id: &OperationId) -> i64 {
        let digest = sha256(&[self.schema.as_bytes(), id.scope.as_bytes(), id.key.as_bytes()]);
        digest[..8].iter().fold(0, |number, byte| number << 8 | i64::from(*byte))
    }

    /// BEGIN, the try-lock and the lease in one round trip. The lock's answer waits in a setting that lives exactly as
    /// long as this transaction, which is also how the end is known to belong to this beginning.
    pub(crate) fn begin_claim(&self, lock: i64, isolation: Option<Isolation>, lease: Duration) -> SqlStr {
        safe(format!(
            "{begin}; \
             SELECT set_config('idem.claim', pg_try_advisory_xact_lock({lock})::text, true)",
            begin = begin_with_lease(isolation, lease),
        ))
    }

    /// A transaction without a key.
    pub(crate) fn begin_unkeyed(isolation: Option<Isolation>, lease: Duration) -> SqlStr {
        safe(begin_with_lease(isolation, lease))
    }

    /// Stores the outcome and commits, in one round trip. The chained empty transaction keeps sqlx's count of open
    /// transactions right and ends with the pool's own ping.
    ///
    /// COMMIT must not follow an insert that did nothing, so this insert fails on a live row (23505). In another
    /// transaction than the claim's the setting is gone, the status NULL, and the insert fails too (23514).
    pub(crate) fn complete(&self, outcome: &Outcome<'_>) -> SqlStr {
        let status = format!("CASE WHEN current_setting('idem.claim', true) = 'true' THEN {} END", outcome.status);
        safe(format!("{}; COMMIT AND CHAIN", self.insert(outcome, &status)))
    }

    /// Rolls the business writes back and stores the refusal, in one round trip. For an instant the key's lock is free;
    /// if a rival completes in it, the insert fails and the rival's outcome is the answer.
    pub(crate) fn refuse(&self, outcome: &Outcome<'_>, lock: i64, check: bool) -> SqlStr {
        let check =
            if check { "SELECT 1 / (coalesce(current_setting('idem.claim', true), '') = 'true')::int; " } else { "" };
        let insert = self.insert(outcome, &outcome.status.to_string());
        safe(format!("{check}ROLLBACK AND CHAIN; SELECT pg_try_advisory_xact_lock({lock}); {insert}; COMMIT AND CHAIN"))
    }

    /// The first commit of a multi-step operation: its claim, with what its first transaction wrote.
    ///
    /// Outside the claim's own transaction the token is NULL and the insert fails (23514).
    pub(crate) fn begin_steps(&self, steps: &Steps<'_>, attempt: &NewAttempt<'_>) -> SqlStr {
        let token = format!("CASE WHEN current_setting('idem.claim', true) = 'true' THEN {} END", steps.token);
        safe(format!("{}; COMMIT AND CHAIN", self.insert_steps(steps, attempt, &token)))
    }

    /// The same after the first transaction was rolled back.
    pub(crate) fn roll_back_and_begin_steps(&self, steps: &Steps<'_>, attempt: &NewAttempt<'_>) -> SqlStr {
        safe(format!(
            "ROLLBACK AND CHAIN; {}; COMMIT AND CHAIN",
            self.insert_steps(steps, attempt, &steps.token.to_string())
        ))
    }

    fn insert_steps(&self, steps: &Steps<'_>, attempt: &NewAttempt<'_>, token: &str) -> String {
        let table = &self.table;
        let mut sql = String::with_capacity(768 + 2 * (attempt.request.len() + steps.recovery_points.len()));
        if attempt.replaces_expired {
            self.push_delete_expired(&mut sql, steps.id);
        }
        let lease = steps.lease.as_secs_f64();
        sql.push_str(&format!(
            "INSERT INTO {table} (expires_at, started_at, lease_expires_at, recover_at, token, attempt, recoveries, \
                                  scope, key, fingerprint, recovery_points, request) \
             VALUES ('infinity', clock_timestamp(), clock_timestamp() + make_interval(secs => {lease}), \
                     clock_timestamp() + make_interval(secs => {lease}), {token}, 1, 0, "
        ));
        push_id(&mut sql, steps.id, ", ");
        for bytes in [attempt.fingerprint.as_slice(), steps.recovery_points, attempt.request] {
            sql.push_str(", ");
            push_bytes(&mut sql, bytes);
        }
        sql.push(')');
        sql
    }

    /// A later transaction of a multi-step operation: begins it, and marks it as one of ours.
    pub(crate) fn begin_step(isolation: Option<Isolation>, lease: Duration) -> SqlStr {
        safe(format!("{}; SELECT set_config('idem.claim', 'true', true)", begin_with_lease(isolation, lease)))
    }

    /// The recovery point and the writes in one commit, if this is still the transaction that was begun (22P02
    /// otherwise) and the operation is still ours (22012 otherwise).
    pub(crate) fn commit_step(&self, steps: &Steps<'_>) -> SqlStr {
        let mut set = String::from("recovery_points = recovery_points || ");
        push_bytes(&mut set, steps.recovery_points);
        set.push_str(&format!(
            ", lease_expires_at = clock_timestamp() + make_interval(secs => {})",
            steps.lease.as_secs_f64()
        ));
        let mut condition = String::new();
        push_condition(&mut condition, steps.id);
        safe(format!(
            "SELECT CASE WHEN claim = 'true' THEN 1 ELSE claim::int END \
             FROM (SELECT coalesce(current_setting('idem.claim', true), '') AS claim) AS ours; \
             {fenced}; COMMIT AND CHAIN",
            fenced = self.fenced(&set, &format!("{condition} AND token = {} AND status IS NULL", steps.token)),
        ))
    }

    /// Takes an abandoned operation over: a new token, so that nothing of its last owner can touch it any more.
    pub(crate) fn take_over(&self, steps: &Steps<'_>, last_token: i64) -> SqlStr {
        let lease = steps.lease.as_secs_f64();
        let set = format!(
            "token = {}, attempt = attempt + 1, lease_expires_at = clock_timestamp() + make_interval(secs => {lease}), \
             recover_at = greatest(recover_at, clock_timestamp() + make_interval(secs => {lease}))",
            steps.token
        );
        let mut condition = String::new();
        push_condition(&mut condition, steps.id);
        condition.push_str(&format!(
            " AND token = {last_token} AND status IS NULL AND lease_expires_at <= clock_timestamp()"
        ));
        safe(format!("{}; COMMIT AND CHAIN", self.fenced(&set, &condition)))
    }

    /// An update that fails (22012) where it touches no row, so that the commit behind it is not reached.
    fn fenced(&self, set: &str, condition: &str) -> String {
        let table = &self.table;
        format!(
            "WITH fenced AS (UPDATE {table} SET {set} WHERE {condition} RETURNING 1) SELECT 1 / count(*) FROM fenced"
        )
    }

    fn push_delete_expired(&self, sql: &mut String, id: &OperationId) {
        sql.push_str(&format!("DELETE FROM {} WHERE ", self.table));
        push_condition(sql, id);
        sql.push_str(" AND expires_at <= clock_timestamp(); ");
    }

    fn insert(&self, outcome: &Outcome<'_>, status: &str) -> String {
        let table = &self.table;
        let mut sql = String::with_capacity(512 + 2 * (outcome.headers.len() + outcome.body.len()));
        if outcome.replaces_expired {
            self.push_delete_expired(&mut sql, outcome.id);
        }
        sql.push_str(&format!(
            "INSERT INTO {table} (expires_at, status, scope, key, fingerprint, headers, body) VALUES ("
        ));
        sql.push_str(&format!("clock_timestamp() + make_interval(secs => {}), {status}, ", outcome.ttl.as_secs_f64()));
        push_id(&mut sql, outcome.id, ", ");
        for bytes in [outcome.fingerprint.as_slice(), outcome.headers, outcome.body] {
            sql.push_str(", ");
            push_bytes(&mut sql, bytes);
        }
        sql.push(')');
        sql
    }
}

fn begin_with_lease(isolation: Option<Isolation>, lease: Duration) -> String {
    // Postgres counts in milliseconds, up to 24 days.
    let lease = lease.as_millis().min(i32::MAX as u128);
    let isolation = Isolation::clause(isolation);
    format!(
        "BEGIN{isolation}; \
         SET LOCAL idle_in_transaction_session_timeout = {lease}; \
         SET LOCAL client_connection_check_interval = 2000"
    )
}

pub(crate) fn rollback() -> SqlStr {
    "ROLLBACK".into_sql_str()
}

fn push_condition(sql: &mut String, id: &OperationId) {
    sql.push_str("scope = ");
    push_id(sql, id, " AND key = ");
}

fn push_id(sql: &mut String, id: &OperationId, between: &str) {
    push_text(sql, &id.scope);
    sql.push_str(between);
    push_text(sql, &id.key);
}

fn push_text(sql: &mut String, text: &str) {
    sql.push_str("convert_from(");
    push_bytes(sql, text.as_bytes());
    sql.push_str(", 'UTF8')");
}

fn push_bytes(sql: &mut String, bytes: &[u8]) {
    sql.push_str("decode('");
    hex::push(sql, bytes);
    sql.push_str("', 'hex')");
}

/// Safe: the schema's name is quoted, everything else is digits.
pub(crate) fn safe(sql: String) -> SqlStr {
    AssertSqlSafe(sql).into_sql_str()
}
