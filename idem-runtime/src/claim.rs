//! Who may run is settled in one transaction: try the key's lock, look the key up, and only then let the handler write.
//!
//! The lock answers a duplicate at once; the look-up, a statement of its own, has a snapshot newer than the lock, so it
//! sees what the lock's last holder committed. Neither is needed for the promise: the primary key judges at the end.

use std::time::Duration;

use bytes::Bytes;
use sqlx::pool::PoolConnection;
use sqlx::{Executor, Postgres, Row};
use tokio::time::{Instant, timeout};

use crate::error::Error;
use crate::fingerprint::Fingerprint;
use crate::idempotency::Idempotency;
use crate::key::IdempotencyKey;
use crate::registry::OperationId;
use crate::response::StoredResponse;
use crate::statements::Isolation;
use crate::transaction::{Tx, is_conflict};

/// One request's claim: which operation it names, and how it wants to be run.
#[derive(Debug, Clone)]
pub(crate) struct Claim {
    pub(crate) idempotency: Idempotency,
    pub(crate) handler: &'static str,
    pub(crate) id: OperationId,
    pub(crate) key: IdempotencyKey,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) ttl: Duration,
    pub(crate) lease: Duration,
    pub(crate) isolation: Option<Isolation>,
    /// How long a duplicate waits for the first one to end; `None` rejects at once.
    pub(crate) wait: Option<Duration>,
}

/// What the database says about a key.
pub(crate) enum Standing {
    /// This transaction holds the claim.
    Claimed(Tx, Room),
    /// The operation has completed.
    Completed(StoredResponse),
    /// Another process runs it.
    InFlight,
}

/// What the look-up saw in the row's place.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Room {
    /// A row whose retention is over: the outcome replaces it.
    pub(crate) replaces_expired: bool,
}

/// The first pause between two looks at a key that another process holds; it doubles, with jitter, up to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LAST_PAUSE: Duration = Duration::from_millis(500);

impl Claim {
    /// Asks the database, and asks again until `deadline` while another process runs the operation. Between two looks it
    /// holds no connection.
    pub(crate) async fn stand(&self, deadline: Option<Instant>) -> Result<Standing, Error> {
        let mut pause = FIRST_PAUSE;
        loop {
            let standing = self.look().await?;
            let now = Instant::now();
            match (standing, deadline) {
                (Standing::InFlight, Some(deadline)) if now < deadline => {
                    let jittered = pause.mul_f64(0.5 + fastrand::f64() / 2.0);
                    tokio::time::sleep(jittered.min(deadline - now)).await;
                    pause = (pause * 2).min(LAST_PAUSE);
                }
                (standing, _) => return Ok(standing),
            }
        }
    }

    async fn look(&self) -> Result<Standing, Error> {
        let lock = self.idempotency.statements().lock_number(&self.id);
        let mut tx = self.begin(lock).await?;
        let row = {
            let statements = self.idempotency.statements();
            let look_up = sqlx::query(statements.look_up.clone()).bind(&*self.id.scope).bind(&*self.id.key);
            let look_up = look_up.persistent(self.idempotency.settings().prepared_statements);
            (&mut *tx).fetch_one(look_up).await.map_err(|error| self.refused(error))?
        };
        let found = Found::read(&row).map_err(Error::Database)?;
        let standing = match found.seen(&self.fingerprint) {
            Seen::Absent { claimed: true, expired } => {
                return Ok(Standing::Claimed(tx, Room { replaces_expired: expired }));
            }
            Seen::Absent { claimed: false, .. } | Seen::Leased => Ok(Standing::InFlight),
            Seen::Completed(stored) => Ok(Standing::Completed(stored)),
            Seen::Mismatch => Err(Error::Mismatch),
        };
        tx.finish();
        standing
    }

    /// A pooled connection may have died unnoticed. Nothing has run yet, so a second one is tried.
    async fn begin(&self, lock: i64) -> Result<Tx, Error> {
        let statement = self.idempotency.statements().begin_claim(lock, self.isolation, self.lease);
        let connection = self.idempotency.connection().await?;
        match Tx::begin(connection, self.key.clone(), statement.clone()).await {
            Err(error) if is_lost(&error) => {
                let connection = self.idempotency.connection().await?;
                Tx::begin(connection, self.key.clone(), statement).await.map_err(|error| self.refused(error))
            }
            begun => begun.map_err(|error| self.refused(error)),
        }
    }

    /// An error before the handler ran: nothing happened.
    fn refused(&self, error: sqlx::Error) -> Error {
        if is_lost(&error) || is_conflict(&error) {
            self.idempotency.unavailable(error)
        } else {
            Error::Database(error)
        }
    }
}

impl Idempotency {
    /// A connection of the pool, within the time a request may wait for one.
    pub(crate) async fn connection(&self) -> Result<PoolConnection<Postgres>, Error> {
        match timeout(self.settings().connection_timeout, self.pool().acquire()).await {
            Ok(acquired) => acquired.map_err(|error| self.unavailable(error)),
            Err(_) => Err(self.unavailable(sqlx::Error::PoolTimedOut)),
        }
    }
}

/// Whether an error leaves open if the server has done what it was asked: the connection is gone, or about to go.
pub(crate) fn is_lost(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Database(error) => error.code().is_some_and(|code| {
            code.starts_with("08") || code.starts_with("57P") || matches!(&*code, "25P03" | "25P04")
        }),
        sqlx::Error::Io(_)
        | sqlx::Error::Tls(_)
        | sqlx::Error::Protocol(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::WorkerCrashed
        | sqlx::Error::BeginFailed => true,
        _ => false,
    }
}

/// The look-up's row.
struct Found {
    claimed: bool,
    expired: Option<bool>,
    leased: Option<bool>,
    fingerprint: Option<Vec<u8>>,
    response: Option<StoredResponse>,
}

enum Seen {
    Absent { claimed: bool, expired: bool },
    Leased,
    Mismatch,
    Completed(StoredResponse),
}

impl Found {
    fn read(row: &sqlx::postgres::PgRow) -> sqlx::Result<Self> {
        let status: Option<i16> = row.try_get("status")?;
        let response = match status.and_then(|status| u16::try_from(status).ok()) {
            Some(status) => Some(StoredResponse {
                status,
                headers: row.try_get("headers")?,
                body: Bytes::from(row.try_get::<Vec<u8>, _>("body")?),
            }),
            None => None,
        };
        Ok(Self {
            claimed: row.try_get("claimed")?,
            expired: row.try_get("expired")?,
            leased: row.try_get("leased")?,
            fingerprint: row.try_get("fingerprint")?,
            response,
        })
    }

    fn seen(self, fingerprint: &Fingerprint) -> Seen {
        // Expired means absent, swept or not.
        let live = self.expired == Some(false);
        match self.response {
            _ if live && self.fingerprint.as_deref() != Some(fingerprint.as_slice()) => Seen::Mismatch,
            Some(response) if live => Seen::Completed(response),
            None if live && self.leased == Some(true) => Seen::Leased,
            _ => Seen::Absent { claimed: self.claimed, expired: self.expired == Some(true) },
        }
    }
}
