//! What the server's errors mean. Every SQLSTATE that decides something stands here, by name, and nowhere else.
//!
//! The question that matters is asked at COMMIT: does this error prove that the transaction was rolled back? A pooler in
//! between answers with codes of its own when it loses the server, also after the commit has happened. So what proves it is
//! listed, and everything else, known or not, leaves the outcome open.

use std::borrow::Cow;

use sqlx::postgres::{PgDatabaseError, PgSeverity};

/// A row with this key is there already.
const UNIQUE_VIOLATION: &str = "23505";
/// The transaction lost to a concurrent one, and the next attempt may win.
const SERIALIZATION_FAILURE: &str = "40001";
const DEADLOCK_DETECTED: &str = "40P01";
/// The one code of its class that leaves open whether the statement took effect.
const STATEMENT_COMPLETION_UNKNOWN: &str = "40003";
/// The server takes no writes: after a failover it has become a replica, or its database defaults to read-only.
const READ_ONLY_TRANSACTION: &str = "25006";
/// What a replica answers to `BEGIN READ WRITE`.
const FEATURE_NOT_SUPPORTED: &str = "0A000";
/// `COMMIT AND CHAIN` or `ROLLBACK AND CHAIN` outside of a transaction.
const NO_ACTIVE_TRANSACTION: &str = "25P01";
/// A statement failed before, and nothing but a rollback is accepted.
const IN_FAILED_TRANSACTION: &str = "25P02";
/// An idle transaction or session that the server has ended.
const IDLE_TIMEOUTS: [&str; 2] = ["25P03", "25P04"];
const UNDEFINED_TABLE: &str = "42P01";
const INVALID_SCHEMA_NAME: &str = "3F000";
const UNDEFINED_FUNCTION: &str = "42883";
const UNDEFINED_COLUMN: &str = "42703";

/// Raised by our own function `fail` and by nobody else: each class is in the range that the standard leaves to
/// implementations, and Postgres uses none of it.
pub(crate) const NOT_OURS: &str = "IDM01";
pub(crate) const COMMITTED: &str = "IDM02";
pub(crate) const LOST_CLAIM: &str = "IDM03";
pub(crate) const SETTINGS_RESET: &str = "IDM04";
pub(crate) const PREPARED: &str = "IDM05";

const OUR_OWN: [&str; 5] = [NOT_OURS, COMMITTED, LOST_CLAIM, SETTINGS_RESET, PREPARED];

/// Classes and codes that, as an `ERROR`, prove that the transaction was not committed. The source is the appendix
/// "PostgreSQL Error Codes": each is raised by the server while it works on a statement, and no pooler invents it.
const PROVES_ROLLBACK: [&str; 23] = [
    "0A", "0P", "20", "21", "22", "23", "24", "25", "2B", "2F", "34", "38", "39", "3B", "3F", "40", "42", "44",
    "53400", "54", "55", "57014", "P0",
];

/// Classes and codes with which servers and poolers say that they are going, or out of what they need.
const LOSES_SERVER: [&str; 6] = ["08", "53", "57P", "58", "XX", READ_ONLY_TRANSACTION];

/// What an error of a statement says about the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The server did not do it, and will not: its transaction is rolled back.
    Refused,
    /// The same, because of a concurrent transaction.
    Conflict,
    /// The server takes no writes; another one may.
    ReadOnly,
    /// It may have been done: the connection is gone, or who answered is not known.
    Unknown,
}

pub(crate) fn code(error: &sqlx::Error) -> Option<Cow<'_, str>> {
    error.as_database_error().and_then(|error| error.code())
}

pub(crate) fn has_code(error: &sqlx::Error, expected: &str) -> bool {
    code(error).as_deref() == Some(expected)
}

pub(crate) fn answer(error: &sqlx::Error) -> Answer {
    if !proves_rollback(error) {
        return Answer::Unknown;
    }
    match code(error).as_deref() {
        Some(SERIALIZATION_FAILURE | DEADLOCK_DETECTED) => Answer::Conflict,
        Some(READ_ONLY_TRANSACTION) => Answer::ReadOnly,
        _ => Answer::Refused,
    }
}

fn proves_rollback(error: &sqlx::Error) -> bool {
    let Some(error) = error.as_database_error().and_then(|error| error.try_downcast_ref::<PgDatabaseError>()) else {
        return false;
    };
    let code = error.code();
    let undecided = code == STATEMENT_COMPLETION_UNKNOWN || IDLE_TIMEOUTS.contains(&code);
    let proves = OUR_OWN.contains(&code) || PROVES_ROLLBACK.iter().any(|known| code.starts_with(known));
    error.severity() == PgSeverity::Error && proves && !undecided
}

/// Whether the connection must not be used again. In answer to a commit it leaves open what became of that: a pooler that has lost
/// its server may say `25006` as well.
pub(crate) fn is_lost(error: &sqlx::Error) -> bool {
    matches!(answer(error), Answer::Unknown | Answer::ReadOnly)
}

/// Whether a statement of the handler's shows that the server behind the connection is gone. A code that nobody knows does not: an
/// application's trigger may raise one.
pub(crate) fn shows_lost_server(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(_) | sqlx::Error::Tls(_) | sqlx::Error::Protocol(_) | sqlx::Error::WorkerCrashed => true,
        sqlx::Error::Database(error) => {
            let gone = |code: &str| LOSES_SERVER.iter().any(|known| code.starts_with(known));
            let fatal = |error: &PgDatabaseError| error.severity() != PgSeverity::Error;
            error.code().is_some_and(|code| gone(&code)) || error.try_downcast_ref().is_some_and(fatal)
        }
        _ => false,
    }
}

/// The transaction lost to a concurrent one, and a retry may win.
pub(crate) fn is_conflict(error: &sqlx::Error) -> bool {
    answer(error) == Answer::Conflict
}

/// Whether another connection may begin where this one could not.
pub(crate) fn is_elsewhere(error: &sqlx::Error) -> bool {
    is_lost(error) || has_code(error, FEATURE_NOT_SUPPORTED)
}

/// Whether a statement of the transaction has failed before this one.
pub(crate) fn is_in_failed_transaction(error: &sqlx::Error) -> bool {
    has_code(error, IN_FAILED_TRANSACTION)
}

/// Whether no transaction is open where one was to be ended.
pub(crate) fn is_outside_of_a_transaction(error: &sqlx::Error) -> bool {
    has_code(error, NO_ACTIVE_TRANSACTION)
}

/// Whether another transaction has inserted the key first.
pub(crate) fn is_taken(error: &sqlx::Error) -> bool {
    let constraint = error.as_database_error().and_then(|error| error.constraint());
    has_code(error, UNIQUE_VIOLATION) && constraint == Some("idempotency_keys_pkey")
}

/// Whether a statement of ours found something of our schema missing: it was never migrated, or by an older version.
pub(crate) fn is_not_migrated(error: &sqlx::Error) -> bool {
    let missing = [UNDEFINED_TABLE, INVALID_SCHEMA_NAME, UNDEFINED_FUNCTION, UNDEFINED_COLUMN];
    code(error).is_some_and(|code| missing.contains(&&*code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_code_proves_nothing() {
        assert_eq!(answer(&sqlx::Error::Io(std::io::ErrorKind::ConnectionReset.into())), Answer::Unknown);
        assert_eq!(answer(&sqlx::Error::Protocol("a broken frame".to_owned())), Answer::Unknown);
        assert_eq!(answer(&sqlx::Error::PoolTimedOut), Answer::Unknown);
    }
}
