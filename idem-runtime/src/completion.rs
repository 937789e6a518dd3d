//! How an operation ends: committed with its response, refused, or released. After it nothing is half done, whatever
//! breaks on the way.

use std::time::Duration;

use tokio::time::sleep;

use crate::claim::{Claim, Room, Standing, is_lost};
use crate::error::Error;
use crate::registry::Ticket;
use crate::response::StoredResponse;
use crate::statements::Outcome;
use crate::transaction::{Tx, is_conflict};

/// What the handler's result means for its transaction.
pub(crate) enum Verdict {
    /// 2xx, 3xx: the writes and the response, in one commit.
    Commit(StoredResponse),
    /// 4xx: the writes are rolled back, the refusal is stored.
    Refuse(StoredResponse),
    /// 5xx and whatever must not be stored: nothing is left, the key is free.
    Release,
}

/// What the caller is told in the end.
pub(crate) enum Ended {
    /// The handler's own result.
    Own,
    /// The stored response of whoever completed this operation.
    Stored(StoredResponse),
}

/// How often, and with which pauses, the outcome of a lost commit is looked up: about three seconds in all.
const RESOLVE_PAUSES: [Duration; 6] = [
    Duration::from_millis(20),
    Duration::from_millis(80),
    Duration::from_millis(200),
    Duration::from_millis(500),
    Duration::from_millis(1_000),
    Duration::from_millis(1_200),
];

/// Why storing an outcome failed.
enum Failure {
    /// Another transaction completed the operation first.
    Rival,
    /// The handler ended the claim's transaction.
    Escaped,
    /// The transaction lost to a concurrent one.
    Conflict,
    /// The server refused: the transaction is rolled back.
    Aborted,
    /// The connection broke: the server may have committed.
    Unknown,
}

impl Claim {
    /// Ends the operation as `verdict` says.
    pub(crate) async fn end(
        &self,
        mut tx: Tx,
        room: Room,
        verdict: Verdict,
        ticket: Option<Ticket<StoredResponse>>,
    ) -> Result<Ended, Error> {
        let (stored, refused) = match verdict {
            Verdict::Commit(stored) => (stored, false),
            Verdict::Refuse(stored) => (stored, true),
            Verdict::Release => return self.release(tx).await,
        };
        if !tx.is_outermost() {
            tx.rollback().await;
            return Err(Error::Escaped);
        }
        let sent = if refused {
            self.refuse(&mut tx, room, &stored).await
        } else {
            self.complete(&mut tx, room, &stored).await
        };
        let Err(error) = sent else {
            tx.finish();
            if let Some(ticket) = ticket {
                ticket.end(stored);
            }
            return Ok(Ended::Own);
        };
        match classify(&error, refused) {
            Failure::Unknown => {
                drop(tx);
                self.resolve(error).await
            }
            failure => {
                // A handler that goes on after losing a conflict ends in an aborted transaction.
                let conflict = tx.met_conflict();
                tx.rollback().await;
                match failure {
                    Failure::Rival => self.rival().await,
                    Failure::Escaped => Err(Error::Escaped),
                    Failure::Aborted if !conflict => Err(Error::Database(error)),
                    _ => Err(self.idempotency.unavailable(error)),
                }
            }
        }
    }

    async fn release(&self, tx: Tx) -> Result<Ended, Error> {
        let conflict = tx.met_conflict();
        tx.rollback().await;
        if conflict { Err(self.idempotency.unavailable(sqlx::Error::BeginFailed)) } else { Ok(Ended::Own) }
    }

    async fn complete(&self, tx: &mut Tx, room: Room, stored: &StoredResponse) -> sqlx::Result<()> {
        let outcome = self.outcome(room, stored);
        tx.send(self.idempotency.statements().complete(&outcome)).await
    }

    /// A transaction that the handler's own error has aborted cannot be asked whether it is the claim's.
    async fn refuse(&self, tx: &mut Tx, room: Room, stored: &StoredResponse) -> sqlx::Result<()> {
        let statements = self.idempotency.statements();
        let (outcome, lock) = (self.outcome(room, stored), statements.lock_number(&self.id));
        match tx.send(statements.refuse(&outcome, lock, true)).await {
            Err(error) if code(&error).as_deref() == Some("25P02") => {
                tx.send(statements.refuse(&outcome, lock, false)).await
            }
            sent => sent,
        }
    }

    fn outcome<'a>(&'a self, room: Room, stored: &'a StoredResponse) -> Outcome<'a> {
        Outcome {
            id: &self.id,
            fingerprint: &self.fingerprint,
            status: stored.status,
            headers: &stored.headers,
            body: &stored.body,
            ttl: self.ttl,
            replaces_expired: room.replaces_expired,
        }
    }

    /// A rival's outcome is the operation's outcome.
    async fn rival(&self) -> Result<Ended, Error> {
        match self.stand(None).await? {
            Standing::Completed(stored) => Ok(Ended::Stored(stored)),
            Standing::InFlight => Err(self.idempotency.in_flight()),
            Standing::Claimed(tx, _) => {
                tx.rollback().await;
                Err(self.idempotency.unavailable(sqlx::Error::RowNotFound))
            }
        }
    }

    /// The acknowledgement of the commit was lost. Once the key's lock is free the transaction has ended: a row says
    /// that it committed, no row that it did not.
    async fn resolve(&self, lost: sqlx::Error) -> Result<Ended, Error> {
        tracing::warn!(handler = self.handler, error = %lost, "the connection broke around a commit; looking the outcome up");
        for pause in RESOLVE_PAUSES {
            sleep(pause).await;
            match self.stand(None).await {
                Ok(Standing::Completed(stored)) => return Ok(Ended::Stored(stored)),
                Ok(Standing::Claimed(tx, _)) => {
                    tx.rollback().await;
                    return Err(self.idempotency.unavailable(lost));
                }
                Err(Error::Mismatch) => return Err(Error::Mismatch),
                Ok(Standing::InFlight) | Err(_) => {}
            }
        }
        Err(Error::OutcomeUnknown { retry_after: self.idempotency.retry_after() })
    }
}

fn code(error: &sqlx::Error) -> Option<String> {
    error.as_database_error().and_then(|error| error.code()).map(|code| code.into_owned())
}

fn classify(error: &sqlx::Error, refused: bool) -> Failure {
    if is_lost(error) {
        return Failure::Unknown;
    }
    if is_conflict(error) {
        return Failure::Conflict;
    }
    let Some(database) = error.as_database_error() else {
        return Failure::Unknown;
    };
    match (code(error).as_deref(), database.constraint()) {
        (Some("23505"), Some("idempotency_keys_pkey")) => Failure::Rival,
        (Some("23514"), Some("completed_or_claimed")) => Failure::Escaped,
        // The refusal's check divides by zero outside the claim's transaction, and chains only inside a transaction.
        (Some("22012" | "25P01"), None) if refused => Failure::Escaped,
        _ => Failure::Aborted,
    }
}
