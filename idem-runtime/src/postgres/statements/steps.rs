//! What an operation of several steps commits, each in one round trip.

use std::time::Duration;

use sqlx::SqlStr;

use super::literal::{push_bytes, push_condition, push_id, safe};
use super::mark::AS_BEGUN;
use super::{Mark, Statements};
use crate::fingerprint::Fingerprint;
use crate::operation_id::OperationId;

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

/// A multi-step operation without an owner, as the look-up found it.
pub(crate) struct Abandoned {
    pub(crate) token: i64,
    pub(crate) recovery_points: Vec<u8>,
}

impl Statements {
    /// The first commit of a multi-step operation: its claim, with what its first transaction wrote.
    pub(crate) fn commit_claim(&self, steps: &Steps<'_>, attempt: &NewAttempt<'_>, mark: &Mark) -> SqlStr {
        let token = mark.guarded(&steps.token.to_string(), &self.schema);
        safe(format!("{AS_BEGUN}; {}; COMMIT AND CHAIN", self.insert_steps(steps, attempt, &token)))
    }

    /// The claim alone, after the first transaction was rolled back.
    pub(crate) fn claim_alone(&self, steps: &Steps<'_>, attempt: &NewAttempt<'_>) -> String {
        format!("; {}; COMMIT AND CHAIN", self.insert_steps(steps, attempt, &steps.token.to_string()))
    }

    /// The same after the first transaction's commit was refused, which may have left it aborted or have ended it.
    pub(crate) fn claim_anew(&self, steps: &Steps<'_>, attempt: &NewAttempt<'_>) -> SqlStr {
        let begin = Mark::of_its_own().begin(None, steps.lease, true);
        safe(format!("ROLLBACK; {begin}{}", self.claim_alone(steps, attempt)))
    }

    /// The recovery point and the writes in one commit, if the operation is still ours.
    ///
    /// One statement for both, so that the server plans one.
    pub(crate) fn commit_step(&self, steps: &Steps<'_>, mark: &Mark) -> SqlStr {
        let mut set = String::from("recovery_points = recovery_points OPERATOR(pg_catalog.||) ");
        push_bytes(&mut set, steps.recovery_points);
        set.push_str(&format!(", lease_expires_at = {}", in_a(steps.lease)));
        let mut condition = String::new();
        push_condition(&mut condition, steps.id);
        condition.push_str(&format!(" AND token OPERATOR(pg_catalog.=) {} AND status IS NULL", number(steps.token)));
        let one = mark.guarded("1", &self.schema);
        safe(format!("{AS_BEGUN}; {}; COMMIT AND CHAIN", self.fenced(&set, &condition, &one)))
    }

    /// Takes an abandoned operation over: a new token, so that nothing of its last owner can touch it any more.
    ///
    /// The last owner may have gone on since the look-up, and have given the claim back. Recovery points are only ever
    /// appended, so their length says whether what was looked up is still where the operation stands.
    pub(crate) fn take_over(&self, steps: &Steps<'_>, abandoned: &Abandoned) -> SqlStr {
        let lease = in_a(steps.lease);
        let set = format!(
            "token = {}, attempt = attempt OPERATOR(pg_catalog.+) 1, lease_expires_at = {lease}, \
             recover_at = greatest(recover_at, {lease})",
            steps.token
        );
        let mut condition = String::new();
        push_condition(&mut condition, steps.id);
        condition.push_str(&format!(
            " AND token OPERATOR(pg_catalog.=) {} \
             AND pg_catalog.octet_length(recovery_points) OPERATOR(pg_catalog.=) {} AND status IS NULL \
             AND lease_expires_at OPERATOR(pg_catalog.<=) pg_catalog.clock_timestamp()",
            number(abandoned.token),
            abandoned.recovery_points.len()
        ));
        safe(format!("{}; COMMIT AND CHAIN", self.fenced(&set, &condition, "1")))
    }

    /// An update that fails where it touches no row, so that the commit behind it is not reached. `one` is 1.
    fn fenced(&self, set: &str, condition: &str, one: &str) -> String {
        let Self { table, schema, .. } = self;
        format!(
            "WITH fenced AS (UPDATE {table} SET {set} WHERE {condition} RETURNING 1) \
             SELECT CASE WHEN pg_catalog.count(*) OPERATOR(pg_catalog.=) 1 THEN {one} ELSE {schema}.fail('IDM03', 0) END \
             FROM fenced"
        )
    }

    fn insert_steps(&self, steps: &Steps<'_>, attempt: &NewAttempt<'_>, token: &str) -> String {
        let table = &self.table;
        let mut sql = String::with_capacity(1_024 + 2 * (attempt.request.len() + steps.recovery_points.len()));
        if attempt.replaces_expired {
            self.push_delete_expired(&mut sql, steps.id);
        }
        let lease = in_a(steps.lease);
        sql.push_str(&format!(
            "INSERT INTO {table} (expires_at, started_at, lease_expires_at, recover_at, token, attempt, recoveries, \
                                  scope, key, fingerprint, recovery_points, request) \
             VALUES ('infinity', pg_catalog.clock_timestamp(), {lease}, {lease}, {token}, 1, 0, "
        ));
        push_id(&mut sql, steps.id, ", ");
        for bytes in [attempt.fingerprint.as_slice(), steps.recovery_points, attempt.request] {
            sql.push_str(", ");
            push_bytes(&mut sql, bytes);
        }
        sql.push(')');
        sql
    }
}

/// A token that its owner has given back is negative, and a sign is an operator.
fn number(token: i64) -> String {
    format!("'{token}'")
}

fn in_a(lease: Duration) -> String {
    format!("pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) interval '{} s'", lease.as_secs_f64())
}
