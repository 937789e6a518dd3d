//! Every statement of the claim protocol, in one place: what they say is the promise.
//!
//! Two kinds. The look-up is a prepared statement with binds. What begins and ends the transaction goes out in the
//! simple protocol, several commands in one round trip; its values are numbers, hexadecimal digits, or text without
//! quotes and backslashes, so nothing in them can end a literal, whatever `standard_conforming_strings` says.

use std::time::Duration;

use sqlx::{AssertSqlSafe, SqlSafeStr, SqlStr};

use crate::fingerprint::{Fingerprint, sha256};
use crate::hex;
use crate::lifecycle::claim::Abandoned;
use crate::lifecycle::in_flight::OperationId;

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
    pub(crate) recall: SqlStr,
    pub(crate) sweep: SqlStr,
    // An owner's statements: each touches its row only while the token is its own.
    pub(crate) record: SqlStr,
    pub(crate) renew: SqlStr,
    pub(crate) give_back: SqlStr,
    pub(crate) complete_steps: SqlStr,
    // The completer's and its person's.
    #[cfg(feature = "axum")]
    pub(crate) reserve_abandoned: SqlStr,
    #[cfg(feature = "axum")]
    pub(crate) fail: SqlStr,
    pub(crate) status: SqlStr,
    pub(crate) failed: SqlStr,
    pub(crate) retry_failed: SqlStr,
    pub(crate) discard_failed: SqlStr,
}

const LOOK_UP: &str = "\
    SELECT coalesce(current_setting('idem.claim', true) = 'true', false) AS claimed, \
           k.expires_at <= clock_timestamp() AS expired, k.lease_expires_at > clock_timestamp() AS leased, \
           k.fingerprint, k.status, k.headers, k.body, k.token, k.recovery_points \
    FROM (SELECT 1) AS one LEFT JOIN {keys} AS k ON k.scope = $1 AND k.key = $2";

const RECALL: &str = "\
    SELECT fingerprint, status, headers, body FROM {keys} \
    WHERE scope = $1 AND key = $2 AND status IS NOT NULL AND expires_at > clock_timestamp()";

const SWEEP: &str = "\
    DELETE FROM {keys} WHERE ctid = ANY (ARRAY( \
        SELECT ctid FROM {keys} WHERE expires_at <= clock_timestamp() \
        ORDER BY expires_at LIMIT $1 FOR UPDATE SKIP LOCKED))";

/// Where an owner's statement finds its row.
const OWNED: &str = "WHERE scope = $1 AND key = $2 AND token = $3 AND status IS NULL";

const RECORD: &str = "\
    UPDATE {keys} SET lease_expires_at = clock_timestamp() + make_interval(secs => $4), \
                      recovery_points = recovery_points || $5 {owned}";

const RENEW: &str = "UPDATE {keys} SET lease_expires_at = clock_timestamp() + make_interval(secs => $4) {owned}";

/// The token goes with the lease: a statement of this owner that is still on its way must not touch the row any more. (Owners'
/// tokens are positive.)
const GIVE_BACK: &str = "UPDATE {keys} SET lease_expires_at = clock_timestamp(), token = -token {owned}";

const COMPLETE_STEPS: &str = "\
    UPDATE {keys} SET expires_at = clock_timestamp() + make_interval(secs => $4), status = $5, headers = $6, body = $7, \
                      started_at = NULL, lease_expires_at = NULL, recover_at = NULL, token = NULL, attempt = NULL, \
                      recoveries = NULL, recovery_points = NULL, request = NULL, failure = NULL {owned}";

/// A pause of 1 s, doubling up to 5 min, of which a random half to whole is kept.
#[cfg(feature = "axum")]
const RESERVE_ABANDONED: &str = "\
    UPDATE {keys} AS k SET recoveries = k.recoveries + 1, \
        recover_at = clock_timestamp() + least(300, power(2, least(k.recoveries, 16))) * (0.5 + random() / 2) * interval '1 second' \
    FROM (SELECT scope, key FROM {keys} \
          WHERE status IS NULL AND failure IS NULL AND octet_length(request) > 0 \
            AND recover_at <= clock_timestamp() AND lease_expires_at <= clock_timestamp() \
          ORDER BY recover_at LIMIT $1 FOR UPDATE SKIP LOCKED) AS due \
    WHERE k.scope = due.scope AND k.key = due.key RETURNING k.scope, k.key, k.request, k.recoveries";

#[cfg(feature = "axum")]
const FAIL: &str = "\
    UPDATE {keys} SET failure = $3 \
    WHERE scope = $1 AND key = $2 AND status IS NULL AND lease_expires_at <= clock_timestamp()";

const STATUS: &str = "\
    SELECT k.expires_at > clock_timestamp() AS live, k.status, k.failure, k.recovery_points, \
           extract(epoch FROM k.started_at)::float8 AS started_at, \
           locks.pid IS NOT NULL AS locked, extract(epoch FROM activity.xact_start)::float8 AS locked_since \
    FROM (SELECT 1) AS one \
    LEFT JOIN {keys} AS k ON k.scope = $1 AND k.key = $2 \
    LEFT JOIN pg_locks AS locks ON locks.locktype = 'advisory' AND locks.granted AND locks.objsubid = 1 \
        AND locks.database = (SELECT oid FROM pg_database WHERE datname = current_database()) \
        AND locks.classid = (($3::int8 >> 32) & 4294967295)::oid AND locks.objid = ($3::int8 & 4294967295)::oid \
    LEFT JOIN pg_stat_activity AS activity ON activity.pid = locks.pid \
    LIMIT 1";

const FAILED: &str = "\
    SELECT scope, key, failure, recovery_points, attempt, extract(epoch FROM started_at)::float8 AS started_at \
    FROM {keys} WHERE status IS NULL AND failure IS NOT NULL ORDER BY started_at LIMIT $1";

const RETRY_FAILED: &str = "\
    UPDATE {keys} SET failure = NULL, recoveries = 0, recover_at = clock_timestamp() \
    WHERE scope = $1 AND key = $2 AND status IS NULL AND failure IS NOT NULL";

const DISCARD_FAILED: &str = "\
    DELETE FROM {keys} \
    WHERE scope = $1 AND key = $2 AND status IS NULL AND failure IS NOT NULL AND lease_expires_at <= clock_timestamp()";

/// 1 in a transaction that was marked as ours; in any other the cast fails (22P02).
const OURS: &str = "CASE WHEN current_setting('idem.claim', true) = 'true' THEN 1 \
                    ELSE coalesce(current_setting('idem.claim', true), '')::int END";

impl Statements {
    pub(crate) fn new(schema: &str) -> Self {
        let keys = format!("{}.idempotency_keys", quoted(schema));
        let fill = |template: &str| safe(template.replace("{owned}", OWNED).replace("{keys}", &keys));
        Self {
            look_up: fill(LOOK_UP),
            recall: fill(RECALL),
            sweep: fill(SWEEP),
            record: fill(RECORD),
            renew: fill(RENEW),
            give_back: fill(GIVE_BACK),
            complete_steps: fill(COMPLETE_STEPS),
            #[cfg(feature = "axum")]
            reserve_abandoned: fill(RESERVE_ABANDONED),
            #[cfg(feature = "axum")]
            fail: fill(FAIL),
            status: fill(STATUS),
            failed: fill(FAILED),
            retry_failed: fill(RETRY_FAILED),
            discard_failed: fill(DISCARD_FAILED),
            table: keys,
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
    #[cfg(feature = "axum")]
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

    /// The same after its commit was refused, which may have left the transaction aborted or have ended it.
    pub(crate) fn begin_steps_anew(&self, steps: &Steps<'_>, attempt: &NewAttempt<'_>) -> SqlStr {
        let begin = begin_with_lease(None, steps.lease);
        let insert = self.insert_steps(steps, attempt, &steps.token.to_string());
        safe(format!("ROLLBACK; {begin}; {insert}; COMMIT AND CHAIN"))
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
    ///
    /// One statement for both, so that the server plans one.
    pub(crate) fn commit_step(&self, steps: &Steps<'_>) -> SqlStr {
        let mut set = String::from("recovery_points = recovery_points || ");
        push_bytes(&mut set, steps.recovery_points);
        set.push_str(&format!(
            ", lease_expires_at = clock_timestamp() + make_interval(secs => {})",
            steps.lease.as_secs_f64()
        ));
        let mut condition = String::new();
        push_condition(&mut condition, steps.id);
        condition.push_str(&format!(" AND token = {} AND status IS NULL", steps.token));
        safe(format!("{}; COMMIT AND CHAIN", self.fenced(&set, &condition, OURS)))
    }

    /// Takes an abandoned operation over: a new token, so that nothing of its last owner can touch it any more.
    ///
    /// The last owner may have gone on since the look-up, and have given the claim back. Recovery points are only ever
    /// appended, so their length says whether what was looked up is still where the operation stands.
    pub(crate) fn take_over(&self, steps: &Steps<'_>, abandoned: &Abandoned) -> SqlStr {
        let lease = steps.lease.as_secs_f64();
        let set = format!(
            "token = {}, attempt = attempt + 1, lease_expires_at = clock_timestamp() + make_interval(secs => {lease}), \
             recover_at = greatest(recover_at, clock_timestamp() + make_interval(secs => {lease}))",
            steps.token
        );
        let mut condition = String::new();
        push_condition(&mut condition, steps.id);
        condition.push_str(&format!(
            " AND token = {} AND octet_length(recovery_points) = {} AND status IS NULL \
             AND lease_expires_at <= clock_timestamp()",
            abandoned.token,
            abandoned.recovery_points.len()
        ));
        safe(format!("{}; COMMIT AND CHAIN", self.fenced(&set, &condition, "1")))
    }

    /// An update that fails (22012) where it touches no row, so that the commit behind it is not reached. `one` is 1.
    fn fenced(&self, set: &str, condition: &str, one: &str) -> String {
        let table = &self.table;
        format!(
            "WITH fenced AS (UPDATE {table} SET {set} WHERE {condition} RETURNING 1) SELECT {one} / count(*) FROM fenced"
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
        sql.push_str(&format!("clock_timestamp() + interval '{} s', {status}, ", outcome.ttl.as_secs_f64()));
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

/// Commits what has no outcome to store. COMMIT alone would end an aborted transaction without an error.
#[cfg(feature = "axum")]
pub(crate) fn commit() -> SqlStr {
    "SELECT 1; COMMIT AND CHAIN".into_sql_str()
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

/// A literal costs a third of what a call of `decode` does, which is planned and run each time.
fn push_text(sql: &mut String, text: &str) {
    if text.bytes().all(|byte| matches!(byte, b' '..=b'~') && !matches!(byte, b'\'' | b'\\')) {
        sql.push('\'');
        sql.push_str(text);
        sql.push('\'');
    } else {
        sql.push_str("convert_from(");
        push_bytes(sql, text.as_bytes());
        sql.push_str(", 'UTF8')");
    }
}

fn push_bytes(sql: &mut String, bytes: &[u8]) {
    sql.push_str("E'\\\\x");
    hex::push(sql, bytes);
    sql.push('\'');
}

/// The schema's name as an identifier.
pub(crate) fn quoted(schema: &str) -> String {
    format!("\"{}\"", schema.replace('"', "\"\""))
}

/// Safe: the schema's name is quoted, everything else is digits.
pub(crate) fn safe(sql: String) -> SqlStr {
    AssertSqlSafe(sql).into_sql_str()
}
