//! "What happened to key K?" must have an answer, for a client that gave up and for the person whom it calls.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Serialize, Serializer};
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::error::Error;
use crate::idempotency::Idempotency;
use crate::key::IdempotencyKey;
use crate::operation::recovery_points;
use crate::operation_id::OperationId;
use crate::scope::{EncodedScope, Scope};

/// What is known of an idempotency key. As JSON: `{"state": "completed", "status": 201}`; times are Unix seconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Status {
    /// Never used in this scope, released, or forgotten after its retention: the next request runs.
    Unknown,
    /// An operation is in progress.
    InFlight {
        /// Since when; `None` where the database does not tell this role.
        #[serde(serialize_with = "unix_seconds")]
        since: Option<SystemTime>,
        /// The last recovery point of a multi-step operation.
        step: Option<String>,
    },
    /// The outcome is stored and will be replayed.
    Completed {
        /// The response's HTTP status; 200 for a function's result.
        status: u16,
    },
    /// The handler left its transaction, so that nobody knows what it changed; a person must look at it and free the key.
    EffectsUnknown {
        /// How.
        reason: String,
    },
    /// The completer gave up; a person must look at it.
    Failed {
        /// Why.
        reason: String,
        /// The last recovery point.
        step: Option<String>,
    },
}

/// An operation that needs a person: the completer gave it up, or its handler left its transaction.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct FailedOperation {
    /// Its scope as it is stored.
    pub scope: String,
    /// Its idempotency key.
    pub key: String,
    /// Why it needs a person.
    pub reason: String,
    /// Whether the handler left its transaction, so that it is not known what it changed. Such an operation is not retried: look at the
    /// data, and free the key with [`discard_failed`](Idempotency::discard_failed).
    pub effects_unknown: bool,
    /// The last recovery point.
    pub step: Option<String>,
    /// How many attempts there were, the clients' included.
    pub attempts: i32,
    /// When it began.
    #[serde(serialize_with = "unix_seconds")]
    pub since: Option<SystemTime>,
}

fn unix_seconds<S: Serializer>(time: &Option<SystemTime>, serializer: S) -> Result<S::Ok, S::Error> {
    time.and_then(|time| time.duration_since(UNIX_EPOCH).ok()).map(|since| since.as_secs()).serialize(serializer)
}

fn time(row: &PgRow, column: &str) -> sqlx::Result<Option<SystemTime>> {
    let seconds: Option<f64> = row.try_get(column)?;
    Ok(seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).map(|since| UNIX_EPOCH + since))
}

fn last_step(row: &PgRow) -> sqlx::Result<Option<String>> {
    let lines: Option<Vec<u8>> = row.try_get("recovery_points")?;
    let points = recovery_points::read(&lines.unwrap_or_default()).unwrap_or_default();
    Ok(points.last().map(|point| point.name.clone()))
}

impl Idempotency {
    /// What happened to an idempotency key. For handlers with `scope = global`, the scope is [`GlobalScope`](crate::GlobalScope).
    ///
    /// A question about the past: what it finds in flight may have ended when it returns.
    ///
    /// # Errors
    /// [`Error::InvalidScope`] and [`Error::InvalidKey`] for what no operation can have, [`Error::Unavailable`] and
    /// [`Error::Database`].
    pub async fn status(&self, scope: &(impl Scope + ?Sized), key: &str) -> Result<Status, Error> {
        let scope = EncodedScope::of(scope).0.map_err(|problem| Error::InvalidScope { problem })?;
        let key = IdempotencyKey::new(key)?;
        let id = OperationId { scope: scope.into(), key: key.as_str().into() };
        let mut connection = self.connection().await?;
        let status = self
            .query(&self.statements().status)
            .bind(&*id.scope)
            .bind(&*id.key)
            .bind(self.statements().lock_number(&id));
        let row = status.fetch_one(&mut *connection).await.map_err(|error| self.not_executed(error))?;
        read_status(&row).map_err(Error::Database)
    }

    /// The operations that need a person, the oldest first, at most `limit` of them.
    ///
    /// # Errors
    /// [`Error::Unavailable`] and [`Error::Database`].
    pub async fn failed_operations(&self, limit: u32) -> Result<Vec<FailedOperation>, Error> {
        let mut connection = self.connection().await?;
        let failed = self.query(&self.statements().failed).bind(i64::from(limit));
        let rows = failed.fetch_all(&mut *connection).await.map_err(|error| self.not_executed(error))?;
        rows.iter().map(read_failed).collect::<sqlx::Result<_>>().map_err(Error::Database)
    }

    /// Gives an operation that the completer gave up to it again, with all its attempts. Whether it was still failed. One whose
    /// effects are not known is left alone: nothing could resume it.
    ///
    /// # Errors
    /// [`Error::Unavailable`] and [`Error::Database`].
    pub async fn retry_failed(&self, operation: &FailedOperation) -> Result<bool, Error> {
        self.touch_failed(self.statements().retry_failed.clone(), operation).await
    }

    /// Forgets a failed operation: its key is free, and its recorded steps are gone. What they did stays done. Whether it
    /// was still failed.
    ///
    /// # Errors
    /// [`Error::Unavailable`] and [`Error::Database`].
    pub async fn discard_failed(&self, operation: &FailedOperation) -> Result<bool, Error> {
        self.touch_failed(self.statements().discard_failed.clone(), operation).await
    }

    async fn touch_failed(&self, statement: sqlx::SqlStr, operation: &FailedOperation) -> Result<bool, Error> {
        let connection = self.connection().await?;
        let touch = || self.query(&statement).bind(&operation.scope).bind(&operation.key);
        let touched = self.execute(connection, touch).await.map_err(|error| self.not_executed(error))?;
        Ok(touched == 1)
    }

    /// Marks an operation that nobody owns as failed.
    #[cfg(feature = "axum")]
    pub(crate) async fn fail_operation(&self, scope: &str, key: &str, failure: &str) -> Result<(), Error> {
        let connection = self.connection().await?;
        let fail = || self.query(&self.statements().fail).bind(scope).bind(key).bind(failure);
        let failed = self.execute(connection, fail).await.map_err(|error| self.not_executed(error))?;
        if failed == 1 {
            tracing::error!(failure, "an operation could not be completed and needs a person");
        }
        Ok(())
    }
}

fn read_status(row: &PgRow) -> sqlx::Result<Status> {
    let locked: bool = row.try_get("locked")?;
    let live: Option<bool> = row.try_get("live")?;
    let status: Option<i16> = row.try_get("status")?;
    let failure: Option<String> = row.try_get("failure")?;
    Ok(match (live, status.and_then(|status| u16::try_from(status).ok()), failure) {
        (Some(true), Some(_), Some(reason)) => Status::EffectsUnknown { reason },
        (Some(true), Some(status), None) => Status::Completed { status },
        (Some(true), None, Some(reason)) => Status::Failed { reason, step: last_step(row)? },
        (Some(true), None, None) => Status::InFlight { since: time(row, "started_at")?, step: last_step(row)? },
        _ if locked => Status::InFlight { since: time(row, "locked_since")?, step: None },
        _ => Status::Unknown,
    })
}

fn read_failed(row: &PgRow) -> sqlx::Result<FailedOperation> {
    Ok(FailedOperation {
        scope: row.try_get("scope")?,
        key: row.try_get("key")?,
        reason: row.try_get("failure")?,
        step: last_step(row)?,
        effects_unknown: row.try_get("effects_unknown")?,
        attempts: row.try_get::<Option<i32>, _>("attempt")?.unwrap_or(1),
        since: time(row, "started_at")?,
    })
}
