//! Who may run is settled in one transaction: try the key's lock, look the key up, and only then let the handler write.
//!
//! The lock answers a duplicate at once; the look-up, a statement of its own, has a snapshot newer than the lock, so it
//! sees what the lock's last holder committed. Neither is needed for the promise: the primary key judges at the end.
//!
//! `tests/model/claim/` is this protocol, with its completion and its registry, as a model in which every order of its
//! steps is checked: a change here is a change there, in the same commit.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{Executor, Postgres, Row, SqlStr};
use tokio::time::{Instant, timeout, timeout_at};

use crate::error::Error;
use crate::fingerprint::Fingerprint;
use crate::idempotency::Idempotency;
use crate::key::IdempotencyKey;
use crate::lifecycle::completion::{Ended, Verdict};
use crate::lifecycle::in_flight::{Entrance, News, OperationId, Ticket, Waiter};
use crate::lifecycle::outcome::StoredResponse;
use crate::postgres::statements::Isolation;
use crate::postgres::transaction::{Tx, is_conflict, unlogged, within};

/// One request's claim: which operation it names, and how it wants to be run.
#[derive(Debug, Clone)]
pub(crate) struct Claim {
    pub(crate) idempotency: Idempotency,
    pub(crate) handler: &'static str,
    pub(crate) id: OperationId,
    /// The number of the key's advisory lock.
    pub(crate) lock: i64,
    pub(crate) key: IdempotencyKey,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) ttl: Duration,
    pub(crate) lease: Duration,
    pub(crate) isolation: Option<Isolation>,
    /// How long a duplicate waits for the first one to end; `None` rejects at once.
    pub(crate) wait: Option<Duration>,
    /// The request as the completer would send it again; empty for what is not routed.
    pub(crate) request: Bytes,
}

/// What a handler works with: one transaction, or an operation of several steps.
pub(crate) trait Unit: Send + Sized {
    /// Takes the claim over from a look-up that allows it; `None` where someone else was faster.
    fn claim(tx: Tx, free: Free, claim: &Claim) -> impl Future<Output = Result<Option<Self>, Error>> + Send;

    /// Ends the operation as `verdict` says.
    fn end(
        self,
        claim: &Claim,
        verdict: Verdict,
        ticket: Option<Ticket<StoredResponse>>,
    ) -> impl Future<Output = Result<Ended, Error>> + Send;

    /// Lets the key go without an outcome. When it returns, the key is free.
    fn abandon(self) -> impl Future<Output = ()> + Send;
}

/// What the database says about a key.
pub(crate) enum Standing<U> {
    /// The claim is ours.
    Claimed(U),
    /// The operation has completed.
    Completed(StoredResponse),
    /// Another process runs it.
    InFlight,
}

/// What the holder of the key's lock found in the row's place.
pub(crate) enum Free {
    /// Nothing, or a row whose retention is over, which the outcome replaces.
    Absent { expired: bool },
    /// A multi-step operation that its owner gave back or lost.
    Abandoned(Abandoned),
}

/// A multi-step operation without an owner.
pub(crate) struct Abandoned {
    pub(crate) token: i64,
    pub(crate) recovery_points: Vec<u8>,
}

/// How a request gets past the operations in flight in this process.
pub(crate) enum Entered {
    /// It is ours to ask the database; without a ticket where an older one has outlived its lease.
    Ours(Option<Ticket<StoredResponse>>),
    /// A duplicate has just learnt the outcome.
    Stored(Arc<StoredResponse>),
}

/// The first pause between two looks at a key that another process holds; it doubles, with jitter, up to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LAST_PAUSE: Duration = Duration::from_millis(500);

impl Claim {
    /// Meets the operations in flight in this process.
    ///
    /// Those that share one look-up share its fate: each of them waits no longer than it would for a connection of its own.
    pub(crate) async fn enter(&self, deadline: Option<Instant>) -> Result<Entered, Error> {
        let looked_up = Instant::now() + self.idempotency.settings().connection_timeout;
        loop {
            match self.idempotency.registry().enter(&self.id, self.fingerprint, self.lease) {
                Entrance::Free(ticket) => return Ok(Entered::Ours(Some(ticket))),
                Entrance::Overdue => return Ok(Entered::Ours(None)),
                Entrance::Occupied { fingerprint, .. } if fingerprint != self.fingerprint => {
                    return Err(Error::Mismatch);
                }
                Entrance::Occupied { waiter, .. } => match self.wait(waiter, deadline, looked_up).await? {
                    News::Stored(stored) => return Ok(Entered::Stored(stored)),
                    News::Running => return Err(self.idempotency.in_flight()),
                    News::Released => {}
                },
            }
        }
    }

    async fn wait(
        &self,
        mut waiter: Waiter<StoredResponse>,
        deadline: Option<Instant>,
        looked_up: Instant,
    ) -> Result<News<StoredResponse>, Error> {
        match deadline {
            None => timeout_at(looked_up, waiter.looked_up())
                .await
                .map_err(|_| self.idempotency.unavailable(sqlx::Error::PoolTimedOut)),
            Some(deadline) => timeout_at(deadline, waiter.ended()).await.map_err(|_| self.idempotency.in_flight()),
        }
    }

    /// Asks the database, and asks again until `deadline` while another process runs the operation. Between two looks it
    /// holds no connection.
    pub(crate) async fn stand<U: Unit>(&self, deadline: Option<Instant>) -> Result<Standing<U>, Error> {
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

    /// Reads the outcome of an operation that was lately seen completed, with one statement. It decides nothing else:
    /// whatever else it finds, and whatever goes wrong with it, is left to the claim.
    pub(crate) async fn recall(&self) -> Result<Option<StoredResponse>, Error> {
        let idempotency = &self.idempotency;
        if !idempotency.recent().holds(self.lock) {
            return Ok(None);
        }
        let mut connection = idempotency.connection_to_repeat_on().await?;
        let recall = self.about_key(&idempotency.statements().recall);
        let recall = unlogged((&mut *connection).fetch_optional(recall));
        let row = match within(idempotency.settings().connection_timeout, recall).await {
            Ok(Some(row)) => row,
            Ok(None) => return Ok(None),
            Err(error) => {
                close_if_lost(&mut connection, &error);
                return Ok(None);
            }
        };
        let fingerprint: Vec<u8> = row.try_get("fingerprint").map_err(Error::Database)?;
        if fingerprint != self.fingerprint {
            return Err(Error::Mismatch);
        }
        stored_response(&row).map_err(Error::Database)
    }

    async fn look<U: Unit>(&self) -> Result<Standing<U>, Error> {
        let mut tx = self.begin().await?;
        let look_up = self.about_key(&self.idempotency.statements().look_up);
        let limit = self.idempotency.settings().connection_timeout;
        let row = within(limit, (&mut *tx).fetch_one(look_up)).await.map_err(|error| self.refused(error))?;
        let standing = match Found::read(&row).map_err(Error::Database)?.seen(&self.fingerprint) {
            Seen::Free(free) => {
                let claimed = U::claim(tx, free, self).await?;
                return Ok(claimed.map_or(Standing::InFlight, Standing::Claimed));
            }
            Seen::InFlight => Ok(Standing::InFlight),
            Seen::Completed(stored) => {
                self.idempotency.recent().note(self.lock);
                Ok(Standing::Completed(stored))
            }
            Seen::Mismatch => Err(Error::Mismatch),
        };
        tx.finish();
        standing
    }

    pub(crate) fn about_key<'a>(&'a self, statement: &SqlStr) -> Query<'a, Postgres, PgArguments> {
        self.idempotency.query(statement).bind(&*self.id.scope).bind(&*self.id.key)
    }

    /// A pooled connection may have died unnoticed. Nothing has run yet, so a second one is tried.
    async fn begin(&self) -> Result<Tx, Error> {
        let statements = self.idempotency.statements();
        let statement = statements.begin_claim(self.lock, self.isolation, self.lease);
        let connection = self.idempotency.connection_to_repeat_on().await?;
        match Tx::begin(&self.idempotency, connection, self.key.clone(), statement.clone(), self.lease).await {
            Err(error) if is_lost(&error) => {
                let connection = self.idempotency.connection().await?;
                Tx::begin(&self.idempotency, connection, self.key.clone(), statement, self.lease)
                    .await
                    .map_err(|error| self.refused(error))
            }
            begun => begun.map_err(|error| self.refused(error)),
        }
    }

    /// An error before the handler ran: nothing happened.
    pub(crate) fn refused(&self, error: sqlx::Error) -> Error {
        self.idempotency.refused(error)
    }
}

impl Idempotency {
    /// A connection of the pool, within the time a request may wait for one.
    pub(crate) async fn connection(&self) -> Result<PoolConnection<Postgres>, Error> {
        // Boxed: connecting makes it a future of kilobytes, which every request would carry along.
        match timeout(self.settings().connection_timeout, Box::pin(self.pool().acquire())).await {
            Ok(acquired) => acquired.map_err(|error| self.unavailable(error)),
            Err(_) => Err(self.unavailable(sqlx::Error::PoolTimedOut)),
        }
    }

    /// A connection for what can be sent again on another one. Where the builder allows it, it comes without the pool's
    /// checks, which saves a round trip, and may have died unnoticed.
    pub(crate) async fn connection_to_repeat_on(&self) -> Result<PoolConnection<Postgres>, Error> {
        let idle = if self.settings().pool_checks { None } else { self.pool().try_acquire() };
        match idle {
            Some(connection) => Ok(connection),
            None => self.connection().await,
        }
    }

    /// Executes a statement of ours that is a transaction of its own; how many rows it touched.
    pub(crate) async fn execute(
        &self,
        mut connection: PoolConnection<Postgres>,
        statement: Query<'_, Postgres, PgArguments>,
    ) -> sqlx::Result<u64> {
        let executed = within(self.settings().connection_timeout, statement.execute(&mut *connection)).await;
        executed.inspect_err(|error| close_if_lost(&mut connection, error)).map(|executed| executed.rows_affected())
    }

    /// An error of a statement that changed nothing.
    pub(crate) fn refused(&self, error: sqlx::Error) -> Error {
        if is_lost(&error) || is_conflict(&error) { self.unavailable(error) } else { Error::Database(error) }
    }
}

/// A connection that was given up in the middle of a statement must not go back to the pool.
fn close_if_lost(connection: &mut PoolConnection<Postgres>, error: &sqlx::Error) {
    if is_lost(error) {
        connection.close_on_drop();
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
    in_progress: Option<Abandoned>,
}

enum Seen {
    Free(Free),
    InFlight,
    Mismatch,
    Completed(StoredResponse),
}

/// The outcome in a row; `None` where there is none yet.
fn stored_response(row: &PgRow) -> sqlx::Result<Option<StoredResponse>> {
    let status: Option<i16> = row.try_get("status")?;
    let Some(status) = status.and_then(|status| u16::try_from(status).ok()) else { return Ok(None) };
    let body = Bytes::from(row.try_get::<Vec<u8>, _>("body")?);
    Ok(Some(StoredResponse { status, headers: row.try_get("headers")?, body }))
}

impl Found {
    fn read(row: &PgRow) -> sqlx::Result<Self> {
        let response = stored_response(row)?;
        let in_progress = match (&response, row.try_get::<Option<i64>, _>("token")?) {
            (None, Some(token)) => Some(Abandoned { token, recovery_points: row.try_get("recovery_points")? }),
            _ => None,
        };
        Ok(Self {
            claimed: row.try_get("claimed")?,
            expired: row.try_get("expired")?,
            leased: row.try_get("leased")?,
            fingerprint: row.try_get("fingerprint")?,
            response,
            in_progress,
        })
    }

    fn seen(self, fingerprint: &Fingerprint) -> Seen {
        // Expired means absent, swept or not.
        let live = self.expired == Some(false);
        match (self.response, self.in_progress) {
            _ if live && self.fingerprint.as_deref() != Some(fingerprint.as_slice()) => Seen::Mismatch,
            (Some(response), _) if live => Seen::Completed(response),
            _ if !self.claimed || (live && self.leased == Some(true)) => Seen::InFlight,
            (None, Some(abandoned)) if live => Seen::Free(Free::Abandoned(abandoned)),
            _ => Seen::Free(Free::Absent { expired: self.expired == Some(true) }),
        }
    }
}
