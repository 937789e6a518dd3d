//! How a one-transaction operation ends: committed with its response, refused, or released. After it nothing is half
//! done, whatever breaks on the way.

use std::time::Duration;

use tokio::time::sleep;

use crate::error::Error;
use crate::lifecycle::claim::{Claim, Free, Standing, Unit, is_lost};
use crate::lifecycle::in_flight::Ticket;
use crate::lifecycle::outcome::StoredResponse;
use crate::postgres::statements::Outcome;
use crate::postgres::transaction::{Tx, is_conflict};

/// What the handler's result means for its writes.
#[cfg_attr(not(feature = "axum"), expect(dead_code, reason = "a function's error has no status"))]
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
pub(crate) const RESOLVE_PAUSES: [Duration; 6] = [
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

impl Unit for Tx {
    async fn claim(mut tx: Tx, free: Free, _: &Claim) -> Result<Option<Self>, Error> {
        match free {
            Free::Absent { expired } => {
                tx.replaces_expired = expired;
                Ok(Some(tx))
            }
            Free::Abandoned(_) => {
                tx.finish();
                Err(Error::StepsChanged { recorded: None, asked: None })
            }
        }
    }

    async fn end(
        mut self,
        claim: &Claim,
        verdict: Verdict,
        ticket: Option<Ticket<StoredResponse>>,
    ) -> Result<Ended, Error> {
        let (stored, refused) = match verdict {
            Verdict::Commit(stored) => (stored, false),
            Verdict::Refuse(stored) => (stored, true),
            Verdict::Release => return claim.release(self).await,
        };
        if !self.is_outermost() {
            self.roll_back().await;
            return Err(Error::Escaped);
        }
        let sent =
            if refused { claim.refuse(&mut self, &stored).await } else { claim.complete(&mut self, &stored).await };
        let Err(error) = sent else {
            claim.idempotency.recent().note(claim.lock);
            self.finish();
            if let Some(ticket) = ticket {
                ticket.end(stored);
            }
            return Ok(Ended::Own);
        };
        match classify(&error, refused) {
            Failure::Unknown => {
                drop(self);
                claim.resolve(error).await
            }
            failure => {
                // A handler that goes on after losing a conflict ends in an aborted transaction.
                let conflict = self.met_conflict();
                self.roll_back().await;
                match failure {
                    Failure::Rival => claim.rival::<Tx>().await,
                    Failure::Escaped => Err(Error::Escaped),
                    Failure::Aborted if !conflict => Err(Error::Database(error)),
                    _ => Err(claim.idempotency.unavailable(error)),
                }
            }
        }
    }

    async fn abandon(self) {
        self.roll_back().await;
    }
}

impl Claim {
    async fn release(&self, tx: Tx) -> Result<Ended, Error> {
        let conflict = tx.met_conflict();
        tx.roll_back().await;
        if conflict { Err(self.idempotency.unavailable(sqlx::Error::BeginFailed)) } else { Ok(Ended::Own) }
    }

    async fn complete(&self, tx: &mut Tx, stored: &StoredResponse) -> sqlx::Result<()> {
        let outcome = self.outcome(tx, stored);
        tx.send(self.idempotency.statements().complete(&outcome)).await
    }

    /// A transaction that the handler's own error has aborted cannot be asked whether it is the claim's.
    async fn refuse(&self, tx: &mut Tx, stored: &StoredResponse) -> sqlx::Result<()> {
        let statements = self.idempotency.statements();
        let (outcome, lock) = (self.outcome(tx, stored), self.lock);
        match tx.send(statements.refuse(&outcome, lock, true)).await {
            // What a lost conflict made of the handler is no refusal: the next attempt may win.
            Err(error) if code(&error).as_deref() == Some("25P02") && !tx.met_conflict() => {
                tx.send(statements.refuse(&outcome, lock, false)).await
            }
            sent => sent,
        }
    }

    fn outcome<'a>(&'a self, tx: &Tx, stored: &'a StoredResponse) -> Outcome<'a> {
        Outcome {
            id: &self.id,
            fingerprint: &self.fingerprint,
            status: stored.status,
            headers: &stored.headers,
            body: &stored.body,
            ttl: self.ttl,
            replaces_expired: tx.replaces_expired,
        }
    }

    /// A rival's outcome is the operation's outcome.
    pub(crate) async fn rival<U: Unit>(&self) -> Result<Ended, Error> {
        match self.stand::<U>(None).await? {
            Standing::Completed(stored) => Ok(Ended::Stored(stored)),
            Standing::InFlight => Err(self.idempotency.in_flight()),
            Standing::Claimed(unit) => {
                unit.abandon().await;
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
            match self.stand::<Tx>(None).await {
                Ok(Standing::Completed(stored)) => return Ok(Ended::Stored(stored)),
                Ok(Standing::Claimed(tx)) => {
                    tx.roll_back().await;
                    return Err(self.idempotency.unavailable(lost));
                }
                Err(Error::Mismatch) => return Err(Error::Mismatch),
                Ok(Standing::InFlight) | Err(_) => {}
            }
        }
        Err(self.idempotency.outcome_unknown())
    }
}

pub(crate) fn code(error: &sqlx::Error) -> Option<String> {
    error.as_database_error().and_then(|error| error.code()).map(std::borrow::Cow::into_owned)
}

/// Whether another transaction has inserted the key first.
pub(crate) fn is_taken(error: &sqlx::Error) -> bool {
    let Some(database) = error.as_database_error() else { return false };
    (database.code().as_deref(), database.constraint()) == (Some("23505"), Some("idempotency_keys_pkey"))
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
        _ if is_taken(error) => Failure::Rival,
        (Some("23514"), Some("completed_or_claimed")) => Failure::Escaped,
        // The refusal's check divides by zero outside the claim's transaction, and chains only inside a transaction.
        (Some("22012" | "25P01"), None) if refused => Failure::Escaped,
        _ => Failure::Aborted,
    }
}
