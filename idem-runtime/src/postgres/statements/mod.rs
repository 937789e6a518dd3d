//! Every statement of the protocol, in one place: what they say is the promise.
//!
//! Two kinds. The look-up and what stands alone are prepared statements with binds. What begins and ends a transaction goes out in
//! the simple protocol, several commands in one round trip.
//!
//! Everything is named with its schema, functions and operators too: an application may put any schema before `pg_catalog` in its
//! search path, and anyone with `CREATE` in that schema could otherwise have code of their own run as the application.

mod claim;
mod literal;
mod mark;
mod steps;

use sqlx::SqlStr;

use crate::fingerprint::sha256;
use crate::operation_id::OperationId;

pub(crate) use claim::{NewOutcome, Unknown};
pub(crate) use literal::{push_bytes, push_text, quoted, safe};
pub(crate) use mark::Mark;
pub(crate) use steps::{Abandoned, NewAttempt, Steps};

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

/// The statements with the schema's name filled in.
#[derive(Debug)]
pub(crate) struct Statements {
    table: String,
    /// The schema's name, quoted.
    schema: String,
    /// The schema's name as it is.
    namespace: String,
    pub(crate) look_up: SqlStr,
    pub(crate) read_completed: SqlStr,
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

/// It says which key it is about: a pooler that mixes up prepared statements gives one client another one's answer.
const LOOK_UP: &str = "\
    SELECT $1::pg_catalog.text AS asked_scope, $2::pg_catalog.text AS asked_key, \
           coalesce(pg_catalog.current_setting('idem.claim', true) {=} $3, false) AS claimed, \
           k.expires_at {<=} pg_catalog.clock_timestamp() AS expired, \
           k.lease_expires_at {>} pg_catalog.clock_timestamp() AS leased, \
           k.fingerprint, k.status, k.headers, k.body, k.token, k.recovery_points \
    FROM (SELECT 1) AS one LEFT JOIN {keys} AS k ON k.scope {=} $1 AND k.key {=} $2";

const READ_COMPLETED: &str = "\
    SELECT scope AS asked_scope, key AS asked_key, fingerprint, status, headers, body FROM {keys} \
    WHERE scope {=} $1 AND key {=} $2 AND status IS NOT NULL AND expires_at {>} pg_catalog.clock_timestamp()";

const SWEEP: &str = "\
    DELETE FROM {keys} WHERE ctid {=} ANY (ARRAY( \
        SELECT ctid FROM {keys} WHERE expires_at {<=} pg_catalog.clock_timestamp() \
        ORDER BY expires_at LIMIT $1 FOR UPDATE SKIP LOCKED))";

/// Where an owner's statement finds its row.
const OWNED: &str = "WHERE scope {=} $1 AND key {=} $2 AND token {=} $3 AND status IS NULL";

const IN_A_LEASE: &str = "pg_catalog.clock_timestamp() {+} pg_catalog.make_interval(secs => $4)";

/// Makes an owner's statement durable where the database commits without waiting for the disk: a crash must not forget that a
/// call to another system was started.
const DURABLY: &str = "\
    FROM (SELECT CASE WHEN pg_catalog.current_setting('synchronous_commit') {=} 'off' \
                      THEN pg_catalog.set_config('synchronous_commit', 'local', true) END) AS durable";

const RECORD: &str = "\
    UPDATE {keys} SET lease_expires_at = {in_a_lease}, recovery_points = recovery_points {||} $5 {durably} {owned}";

const RENEW: &str = "UPDATE {keys} SET lease_expires_at = {in_a_lease} {owned}";

/// The token goes with the lease: a statement of this owner that is still on its way must not touch the row any more. (Owners'
/// tokens are positive.)
const GIVE_BACK: &str =
    "UPDATE {keys} SET lease_expires_at = pg_catalog.clock_timestamp(), token = 0 {-} token {owned}";

/// A status of 0 with its reason is the outcome of an operation whose effects are not known.
const COMPLETE_STEPS: &str = "\
    UPDATE {keys} SET expires_at = CASE WHEN $5 {=} 0 THEN 'infinity' ELSE {in_a_lease} END, \
                      status = $5, headers = $6, body = $7, failure = $8, \
                      started_at = NULL, lease_expires_at = NULL, recover_at = NULL, token = NULL, attempt = NULL, \
                      recoveries = NULL, recovery_points = NULL, request = NULL {durably} {owned}";

/// A pause of 1 s, doubling up to 5 min, of which a random half to whole is kept.
#[cfg(feature = "axum")]
const RESERVE_ABANDONED: &str = "\
    UPDATE {keys} AS k SET recoveries = k.recoveries {+} 1, \
        recover_at = pg_catalog.clock_timestamp() {+} pg_catalog.make_interval(secs => \
            least(300::pg_catalog.float8, \
                  pg_catalog.power(2::pg_catalog.float8, least(k.recoveries, 16)::pg_catalog.float8)) \
            {*} (0.5::pg_catalog.float8 {+} pg_catalog.random() {/} 2::pg_catalog.float8)) \
    FROM (SELECT scope, key FROM {keys} \
          WHERE status IS NULL AND failure IS NULL AND pg_catalog.octet_length(request) {>} 0 \
            AND recover_at {<=} pg_catalog.clock_timestamp() AND lease_expires_at {<=} pg_catalog.clock_timestamp() \
          ORDER BY recover_at LIMIT $1 FOR UPDATE SKIP LOCKED) AS due \
    WHERE k.scope {=} due.scope AND k.key {=} due.key RETURNING k.scope, k.key, k.request, k.recoveries";

#[cfg(feature = "axum")]
const FAIL: &str = "\
    UPDATE {keys} SET failure = $3 \
    WHERE scope {=} $1 AND key {=} $2 AND status IS NULL AND failure IS NULL \
      AND lease_expires_at {<=} pg_catalog.clock_timestamp()";

const STATUS: &str = "\
    SELECT k.expires_at {>} pg_catalog.clock_timestamp() AS live, k.status, k.failure, k.recovery_points, \
           extract(epoch FROM k.started_at)::pg_catalog.float8 AS started_at, \
           locks.pid IS NOT NULL AS locked, extract(epoch FROM activity.xact_start)::pg_catalog.float8 AS locked_since \
    FROM (SELECT 1) AS one \
    LEFT JOIN {keys} AS k ON k.scope {=} $1 AND k.key {=} $2 \
    LEFT JOIN pg_catalog.pg_locks AS locks ON locks.locktype {=} 'advisory' AND locks.granted AND locks.objsubid {=} 1 \
        AND locks.database {=} (SELECT oid FROM pg_catalog.pg_database WHERE datname {=} pg_catalog.current_database()) \
        AND locks.classid {=} (($3::pg_catalog.int8 {>>} 32) {&} 4294967295)::pg_catalog.oid \
        AND locks.objid {=} ($3::pg_catalog.int8 {&} 4294967295)::pg_catalog.oid \
    LEFT JOIN pg_catalog.pg_stat_activity AS activity ON activity.pid {=} locks.pid \
    LIMIT 1";

const FAILED: &str = "\
    SELECT scope, key, failure, recovery_points, attempt, extract(epoch FROM started_at)::pg_catalog.float8 AS started_at, \
           status IS NOT NULL AS effects_unknown \
    FROM {keys} WHERE failure IS NOT NULL ORDER BY started_at LIMIT $1";

const RETRY_FAILED: &str = "\
    UPDATE {keys} SET failure = NULL, recoveries = 0, recover_at = pg_catalog.clock_timestamp() \
    WHERE scope {=} $1 AND key {=} $2 AND status IS NULL AND failure IS NOT NULL";

const DISCARD_FAILED: &str = "\
    DELETE FROM {keys} \
    WHERE scope {=} $1 AND key {=} $2 AND failure IS NOT NULL \
      AND (status IS NOT NULL OR lease_expires_at {<=} pg_catalog.clock_timestamp())";

/// The operators that statements use, each with the schema that it must come from.
pub(crate) fn qualified(template: &str) -> String {
    const OPERATORS: [&str; 12] = ["=", "<>", "<=", "<", ">>", ">", "+", "-", "*", "/", "||", "&"];
    OPERATORS.iter().fold(template.to_owned(), |sql, operator| {
        sql.replace(&format!("{{{operator}}}"), &format!("OPERATOR(pg_catalog.{operator})"))
    })
}

impl Statements {
    pub(crate) fn new(schema: &str) -> Self {
        let keys = format!("{}.idempotency_keys", quoted(schema));
        let fill = |template: &str| {
            let whole = template
                .replace("{owned}", OWNED)
                .replace("{durably}", DURABLY)
                .replace("{in_a_lease}", IN_A_LEASE)
                .replace("{keys}", &keys);
            safe(qualified(&whole))
        };
        Self {
            look_up: fill(LOOK_UP),
            read_completed: fill(READ_COMPLETED),
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
            schema: quoted(schema),
            namespace: schema.to_owned(),
            table: keys,
        }
    }

    /// The advisory lock's number. Two keys that share one, 1 in 2^64, share a 409 and nothing else.
    pub(crate) fn lock_number(&self, id: &OperationId) -> i64 {
        let digest = sha256(&[self.namespace.as_bytes(), id.scope.as_bytes(), id.key.as_bytes()]);
        digest[..8].iter().fold(0, |number, byte| number << 8 | i64::from(*byte))
    }

    /// The schema's name.
    pub(crate) fn namespace(&self) -> &str {
        &self.namespace
    }
}
