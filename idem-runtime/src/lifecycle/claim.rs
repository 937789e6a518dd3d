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
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{Executor, Postgres, Row, SqlStr};
use tokio::time::{Instant, timeout_at};

use super::in_flight::{Entrance, News, Ticket, Waiter};
use super::outcome::StoredResponse;
use crate::error::Error;
use crate::fingerprint::Fingerprint;
use crate::idempotency::Idempotency;
use crate::key::IdempotencyKey;
use crate::operation_id::OperationId;
use crate::postgres::connection::{close_if_lost, unlogged, within};
use crate::postgres::sqlstate::is_elsewhere;
use crate::postgres::statements::{Abandoned, Isolation, Mark};
use crate::postgres::transaction::{Begin, Tx};

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
    /// Whether it is made of several commits, with calls to other systems between them.
    pub(crate) of_steps: bool,
}

/// A transaction that holds a key's lock, and what the look-up found in the row's place.
pub(crate) struct Free {
    pub(crate) tx: Tx,
    pub(crate) mark: Mark,
    pub(crate) place: Place,
}

/// What the database says about a key.
pub(crate) enum Standing {
    /// It may be claimed.
    Free(Free),
    /// The operation has completed.
    Completed(StoredResponse),
    /// Another process runs it.
    InFlight,
}

/// What the holder of the key's lock found in the row's place.
pub(crate) enum Place {
    /// Nothing, or a row whose retention is over, which the outcome replaces.
    Absent { expired: bool },
    /// A multi-step operation that its owner gave back or lost.
    Abandoned(Abandoned),
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
    pub(crate) async fn acquire(&self, deadline: Option<Instant>) -> Result<Standing, Error> {
        let mut pause = FIRST_PAUSE;
        loop {
            let standing = self.look_up().await?;
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
    pub(crate) async fn read_completed(&self) -> Result<Option<StoredResponse>, Error> {
        let idempotency = &self.idempotency;
        if !idempotency.recent().holds(self.lock) {
            return Ok(None);
        }
        let mut connection = idempotency.connection_to_repeat_on().await?;
        let read = self.about_key(&idempotency.statements().read_completed);
        let read = unlogged((&mut *connection).fetch_optional(read));
        let row = match within(idempotency.settings().connection_timeout, read).await {
            Ok(Some(row)) => row,
            Ok(None) => return Ok(None),
            Err(error) => {
                close_if_lost(&mut connection, &error);
                return Ok(None);
            }
        };
        self.check_answer(&row)?;
        let fingerprint: Vec<u8> = row.try_get("fingerprint").map_err(Error::Database)?;
        if fingerprint != self.fingerprint {
            return Err(Error::Mismatch);
        }
        stored_response(&row).map_err(Error::Database)
    }

    async fn look_up(&self) -> Result<Standing, Error> {
        let (mut tx, mark) = self.begin().await?;
        let claimed = mark.claimed();
        let look_up = self.about_key(&self.idempotency.statements().look_up).bind(&claimed);
        let row = tx.fetch_one(look_up).await.map_err(|error| self.idempotency.not_executed(error))?;
        self.check_answer(&row)?;
        let standing = match Found::read(&row).map_err(Error::Database)?.state(&self.fingerprint) {
            KeyState::Free(place) => return Ok(Standing::Free(Free { tx, mark, place })),
            KeyState::InFlight => Ok(Standing::InFlight),
            KeyState::Completed(stored) => {
                self.idempotency.recent().note(self.lock);
                Ok(Standing::Completed(stored))
            }
            KeyState::Mismatch => Err(Error::Mismatch),
        };
        tx.finish();
        standing
    }

    /// A pooler in transaction mode that knows nothing of prepared statements gives one client the answer to another one's.
    fn check_answer(&self, row: &PgRow) -> Result<(), Error> {
        let about = |column| row.try_get::<&str, _>(column);
        if matches!((about("asked_scope"), about("asked_key")), (Ok(scope), Ok(key)) if scope == &*self.id.scope && key == &*self.id.key)
        {
            return Ok(());
        }
        tracing::error!(
            handler = self.handler,
            "the answer to a look-up is about another key: a pooler mixes prepared statements up; build the `Idempotency` with \
             `prepared_statements(false)`"
        );
        Err(self.idempotency.unavailable(sqlx::Error::Protocol("an answer about another key".to_owned())))
    }

    pub(crate) fn about_key<'a>(&'a self, statement: &SqlStr) -> Query<'a, Postgres, PgArguments> {
        self.idempotency.query(statement).bind(&*self.id.scope).bind(&*self.id.key)
    }

    /// A pooled connection may have died unnoticed, or its server may have become a replica. Nothing has run yet, so a second one is
    /// tried.
    async fn begin(&self) -> Result<(Tx, Mark), Error> {
        let mut begin = Begin {
            handler: self.handler,
            key: self.key.clone(),
            mark: Mark::of_key(self.lock),
            isolation: self.isolation,
            lease: self.lease,
            durable: self.of_steps,
        };
        let tx = self.idempotency.begin(&mut begin).await?;
        Ok((tx, begin.mark))
    }
}

impl Idempotency {
    /// Begins on a connection of the pool, and if that turns out to be dead or read-only, on a second one.
    pub(crate) async fn begin(&self, begin: &mut Begin) -> Result<Tx, Error> {
        let refused = |error| match error {
            error if is_elsewhere(&error) => self.unavailable(error),
            error => self.not_executed(error),
        };
        match Tx::begin(self, self.connection_to_repeat_on().await?, begin).await {
            Err(error) if is_elsewhere(&error) => {
                begin.mark.renew();
                Tx::begin(self, self.connection().await?, begin).await.map_err(refused)
            }
            begun => begun.map_err(refused),
        }
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

enum KeyState {
    Free(Place),
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

    fn state(self, fingerprint: &Fingerprint) -> KeyState {
        // Expired means absent, swept or not.
        let live = self.expired == Some(false);
        match (self.response, self.in_progress) {
            _ if live && self.fingerprint.as_deref() != Some(fingerprint.as_slice()) => KeyState::Mismatch,
            (Some(response), _) if live => KeyState::Completed(response),
            _ if !self.claimed || (live && self.leased == Some(true)) => KeyState::InFlight,
            (None, Some(abandoned)) if live => KeyState::Free(Place::Abandoned(abandoned)),
            _ => KeyState::Free(Place::Absent { expired: self.expired == Some(true) }),
        }
    }
}
