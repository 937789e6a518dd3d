//! The journal in a Postgres table, for processes without a disk that outlives them.

use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use sqlx::{PgPool, Row as _};
use uuid::Uuid;

use super::{Journal, JournalError, Record};
use crate::key::Key;

const CREATE: &str = "
    CREATE TABLE IF NOT EXISTS idem_client_journal (
        key text NOT NULL,
        operation text NOT NULL,
        target text NOT NULL,
        request_hash bytea NOT NULL CHECK (octet_length(request_hash) = 32),
        begun_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        begun_by bytea NOT NULL CHECK (octet_length(begun_by) = 16),
        times_begun integer NOT NULL DEFAULT 1 CHECK (times_begun > 0),
        PRIMARY KEY (key, operation)
    )";

/// The update makes the row that was there come back, waits for whoever is writing it, and tells its first sender that
/// it is no longer alone.
const BEGIN: &str = "
    INSERT INTO idem_client_journal AS journal (key, operation, target, request_hash, begun_by)
    VALUES ($1, $2, $3, $4, $5)
    ON CONFLICT (key, operation) DO UPDATE SET times_begun = least(journal.times_begun, 1000000) + 1
    RETURNING key, operation, target, request_hash, begun_by, times_begun = 1 AS is_new,
        (extract(epoch FROM begun_at) * 1000)::bigint AS begun_at_ms";

const STRIKE_OFF: &str = "DELETE FROM idem_client_journal WHERE key = $1 AND operation = $2";

const WITHDRAW: &str = "
    DELETE FROM idem_client_journal WHERE key = $1 AND operation = $2 AND begun_by = $3 AND times_begun = 1";

const PENDING: &str = "
    SELECT key, operation, target, request_hash, begun_by, (extract(epoch FROM begun_at) * 1000)::bigint AS begun_at_ms
    FROM idem_client_journal ORDER BY begun_at, key, operation";

/// A journal in the table `idem_client_journal`, which any number of processes may share.
///
/// What other processes are sending right now is among [`pending`](Journal::pending) too: leave alone what was begun
/// less than a deadline ago. A begun operation costs one round trip and the commit's flush; do not switch
/// `synchronous_commit` off for this pool, or the record may be lost with the server.
#[derive(Clone, Debug)]
pub struct PostgresJournal {
    pool: PgPool,
}

impl PostgresJournal {
    /// A journal in the pool's database. Call [`Self::migrate`] once before using it.
    #[must_use]
    pub fn new(pool: PgPool) -> Self {
        Self { pool }
    }

    /// Makes the table if it is not there.
    ///
    /// # Errors
    ///
    /// When the database cannot be reached or refuses.
    pub async fn migrate(&self) -> Result<(), JournalError> {
        // Two processes that create the same table at once would fail one another without the lock.
        let mut transaction = self.pool.begin().await.map_err(failed)?;
        let lock = sqlx::query("SELECT pg_advisory_xact_lock(hashtext('idem_client_journal'))");
        lock.execute(&mut *transaction).await.map_err(failed)?;
        sqlx::query(CREATE).execute(&mut *transaction).await.map_err(failed)?;
        transaction.commit().await.map_err(failed)
    }
}

impl PostgresJournal {
    async fn insert(&self, record: &Record) -> Result<Option<Record>, JournalError> {
        let row = sqlx::query(BEGIN)
            .bind(record.key.as_str())
            .bind(&record.operation)
            .bind(&record.target)
            .bind(&record.request_hash[..])
            .bind(&record.begun_by.as_bytes()[..])
            .fetch_one(&self.pool)
            .await
            .map_err(failed)?;
        if row.try_get("is_new").map_err(failed)? { Ok(None) } else { read(&row).map(Some) }
    }
}

#[async_trait]
impl Journal for PostgresJournal {
    /// A task of its own: a caller that goes away in the middle of it must not leave a record of what was never sent.
    async fn begin(&self, record: &Record) -> Result<Option<Record>, JournalError> {
        let (answer, receiver) = tokio::sync::oneshot::channel();
        let (journal, record) = (self.clone(), record.clone());
        tokio::spawn(async move {
            let begun = journal.insert(&record).await;
            let is_new = !matches!(begun, Ok(Some(_)));
            let has_failed = begun.is_err();
            // After an error the row may be there all the same: the commit's answer may have been lost.
            if (answer.send(begun).is_err() || has_failed) && is_new {
                let _ = journal.withdraw(&record).await;
            }
        });
        receiver.await.unwrap_or_else(|_| Err(JournalError::new("the runtime is shutting down")))
    }

    async fn strike_off(&self, operation: &str, key: &Key) -> Result<(), JournalError> {
        sqlx::query(STRIKE_OFF).bind(key.as_str()).bind(operation).execute(&self.pool).await.map_err(failed)?;
        Ok(())
    }

    async fn withdraw(&self, record: &Record) -> Result<bool, JournalError> {
        let withdraw = sqlx::query(WITHDRAW)
            .bind(record.key.as_str())
            .bind(&record.operation)
            .bind(&record.begun_by.as_bytes()[..]);
        Ok(withdraw.execute(&self.pool).await.map_err(failed)?.rows_affected() == 1)
    }

    async fn pending(&self) -> Result<Vec<Record>, JournalError> {
        let rows = sqlx::query(PENDING).fetch_all(&self.pool).await.map_err(failed)?;
        rows.iter().map(read).collect()
    }
}

fn failed(error: sqlx::Error) -> JournalError {
    JournalError::new("the journal's database failed").caused_by(error)
}

fn read(row: &sqlx::postgres::PgRow) -> Result<Record, JournalError> {
    let damaged = || JournalError::new("a row of `idem_client_journal` is damaged");
    let operation: String = row.try_get("operation").map_err(failed)?;
    let key = Key::new(row.try_get::<String, _>("key").map_err(failed)?).map_err(|_| damaged())?;
    let hash: Vec<u8> = row.try_get("request_hash").map_err(failed)?;
    let begun_at: i64 = row.try_get("begun_at_ms").map_err(failed)?;
    Ok(Record {
        key: key.for_operation(&operation),
        operation,
        target: row.try_get("target").map_err(failed)?,
        request_hash: hash.try_into().map_err(|_| damaged())?,
        begun_at: SystemTime::UNIX_EPOCH + Duration::from_millis(u64::try_from(begun_at).map_err(|_| damaged())?),
        begun_by: Uuid::from_slice(row.try_get("begun_by").map_err(failed)?).map_err(|_| damaged())?,
    })
}
