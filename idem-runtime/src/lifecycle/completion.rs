//! How a one-transaction operation ends: committed with its response, refused, or released. After it nothing is half
//! done, whatever breaks on the way.

use std::time::Duration;

use tokio::time::sleep;

use super::claim::{Claim, Free, Place, Standing};
use super::outcome::StoredResponse;
use super::unit::{Ended, Unit, Verdict};
use crate::error::Error;
use crate::postgres::connection;
use crate::postgres::ending::{Escape, NotEnded};
use crate::postgres::sqlstate::{is_in_failed_transaction, is_lost, is_taken};
use crate::postgres::statements::{Mark, NewOutcome, Unknown};
use crate::postgres::transaction::Tx;

/// How often, and with which pauses, the outcome of a lost commit is looked up: about three seconds in all.
pub(crate) const RESOLVE_PAUSES: [Duration; 6] = [
    Duration::from_millis(20),
    Duration::from_millis(80),
    Duration::from_millis(200),
    Duration::from_millis(500),
    Duration::from_millis(1_000),
    Duration::from_millis(1_200),
];

/// What the holder of one transaction knows beside it.
pub(crate) struct OneTransaction {
    pub(crate) mark: Mark,
    /// The look-up saw a row whose retention is over: the outcome makes room for itself.
    pub(crate) replaces_expired: bool,
}

impl OneTransaction {
    pub(crate) fn new(mark: Mark, replaces_expired: bool) -> Self {
        Self { mark, replaces_expired }
    }
}

impl Unit for Tx {
    type Identity = OneTransaction;
    const OF_STEPS: bool = false;

    async fn take(free: Free, _: &Claim) -> Result<Option<(Self, OneTransaction)>, Error> {
        match free.place {
            Place::Absent { expired } => Ok(Some((free.tx, OneTransaction::new(free.mark, expired)))),
            Place::Abandoned(_) => {
                free.tx.finish();
                Err(Error::StepsChanged { recorded: None, asked: None })
            }
        }
    }

    async fn end(mut self, identity: &OneTransaction, claim: &Claim, verdict: Verdict) -> Result<Ended, Error> {
        let OneTransaction { mark, replaces_expired } = identity;
        let statements = claim.idempotency.statements();
        let ended = match &verdict {
            Verdict::Commit(stored) => {
                claim.warn_of_unused(&self);
                self.commit_with(mark, statements.complete(&claim.outcome(stored, *replaces_expired), mark)).await
            }
            Verdict::Refuse(stored) => {
                let refusal = statements.refusal(&claim.outcome(stored, *replaces_expired), claim.lock);
                self.roll_back_and(mark, &refusal).await
            }
            Verdict::Release => return claim.release(self, mark).await,
        };
        let error = match ended {
            Ok(()) => {
                claim.idempotency.recent().note(claim.lock);
                self.finish();
                return Ok(Ended::Own);
            }
            Err(NotEnded::Escaped(escape)) => return Err(claim.escaped(self, escape).await),
            Err(NotEnded::Untidy(untidy)) => {
                self.finish();
                return Err(Error::Untidy(untidy));
            }
            Err(NotEnded::Failed(error)) => error,
        };
        if is_lost(&error) {
            // Lost in the handler, nothing was committed: what is looked up is whether another attempt has been.
            let sent = self.lost_connection().is_none();
            drop(self);
            return claim.resolve(error, sent).await;
        }
        if let (Verdict::Refuse(stored), true) = (&verdict, self.is_out_of_step()) {
            drop(self);
            return claim.refuse_anew(stored, error).await;
        }
        let conflict = self.met_conflict() && is_in_failed_transaction(&error);
        self.release_connection(&error);
        if is_taken(&error) {
            return claim.rival().await;
        }
        // A handler that goes on after losing a conflict ends in an aborted transaction.
        Err(if conflict { claim.idempotency.conflict(Some(error)) } else { claim.idempotency.not_executed(error) })
    }

    fn note_conflict(&mut self) {
        Tx::note_conflict(self);
    }
}

impl Tx {
    /// Gives the connection back after a statement of ours has failed on it, if it is fit for that.
    pub(crate) fn release_connection(self, error: &sqlx::Error) {
        if is_lost(error) { drop(self) } else { self.finish() }
    }
}

impl Claim {
    async fn release(&self, mut tx: Tx, mark: &Mark) -> Result<Ended, Error> {
        let conflict = tx.met_conflict();
        match tx.roll_back_and(mark, "").await {
            Ok(()) => tx.finish(),
            Err(NotEnded::Escaped(escape)) => return Err(self.escaped(tx, escape).await),
            Err(NotEnded::Untidy(untidy)) => {
                tracing::error!(handler = self.handler, "{untidy}");
                tx.finish();
            }
            // The connection is closed, and whatever is open ends with it.
            Err(NotEnded::Failed(_)) => drop(tx),
        }
        if conflict { Err(self.idempotency.conflict(None)) } else { Ok(Ended::Own) }
    }

    pub(crate) fn outcome<'a>(&'a self, stored: &'a StoredResponse, replaces_expired: bool) -> NewOutcome<'a> {
        NewOutcome {
            id: &self.id,
            fingerprint: &self.fingerprint,
            status: stored.status,
            headers: &stored.headers,
            body: &stored.body,
            ttl: self.ttl,
            replaces_expired,
        }
    }

    /// Stores a refusal on another connection, once the first one's transaction has ended with it.
    async fn refuse_anew(&self, stored: &StoredResponse, error: sqlx::Error) -> Result<Ended, Error> {
        for pause in RESOLVE_PAUSES {
            sleep(pause).await;
            match self.acquire(None).await {
                Ok(Standing::Completed(stored)) => return Ok(Ended::Stored(stored)),
                Ok(Standing::Free(Free { mut tx, mark, place: Place::Absent { expired } })) => {
                    let statements = self.idempotency.statements();
                    let refusal = statements.refusal(&self.outcome(stored, expired), self.lock);
                    if tx.roll_back_and(&mark, &refusal).await.is_ok() {
                        tx.finish();
                        return Ok(Ended::Own);
                    }
                }
                Ok(Standing::Free(_) | Standing::InFlight) | Err(_) => {}
            }
        }
        Err(self.idempotency.unavailable(error))
    }

    /// Makes an escape final for its key, so that no retry repeats effects that may be there.
    async fn escaped(&self, tx: Tx, escape: Escape) -> Error {
        drop(tx);
        self.log_escape(escape);
        self.store_effects_unknown(escape).await;
        Error::EffectsUnknown
    }

    pub(crate) fn log_escape(&self, escape: Escape) {
        tracing::error!(
            handler = self.handler,
            "{escape}. What the operation has changed is not known: its key is blocked until a person frees it"
        );
    }

    /// Stores that the effects are not known. An outcome that another attempt has stored meanwhile stays.
    pub(crate) async fn store_effects_unknown(&self, escape: Escape) {
        let reason = escape.to_string();
        let unknown = Unknown { id: &self.id, fingerprint: &self.fingerprint, reason: &reason };
        let limit = self.idempotency.settings().connection_timeout;
        for pause in [Duration::ZERO].iter().chain(&RESOLVE_PAUSES) {
            sleep(*pause).await;
            let Ok(mut connection) = self.idempotency.connection().await else { continue };
            let store = self.idempotency.statements().store_unknown(&unknown);
            match connection::send(&mut connection, limit, store).await {
                Ok(()) => return,
                Err(error) => {
                    tracing::warn!(handler = self.handler, %error, "that the effects are not known could not be stored");
                    // It may be left in the middle of the transaction.
                    connection.close_on_drop();
                }
            }
        }
        tracing::error!(
            handler = self.handler,
            "that the effects are not known could not be stored: a retry may repeat them"
        );
    }

    /// A rival's outcome is the operation's outcome.
    pub(crate) async fn rival(&self) -> Result<Ended, Error> {
        match self.acquire(None).await? {
            Standing::Completed(stored) => Ok(Ended::Stored(stored)),
            Standing::InFlight => Err(self.idempotency.in_flight()),
            // It has been released meanwhile.
            Standing::Free(free) => {
                free.tx.finish();
                Err(self.idempotency.conflict(None))
            }
        }
    }

    /// The acknowledgement of the commit was lost. Once the key's lock is free the transaction has ended: a row says
    /// that it committed, no row that it did not.
    async fn resolve(&self, lost: sqlx::Error, sent: bool) -> Result<Ended, Error> {
        tracing::warn!(handler = self.handler, error = %lost, "the connection was lost before the end; looking the outcome up");
        for pause in RESOLVE_PAUSES {
            sleep(pause).await;
            match self.acquire(None).await {
                Ok(Standing::Completed(stored)) => return Ok(Ended::Stored(stored)),
                Ok(Standing::Free(free)) => {
                    free.tx.finish();
                    return Err(self.idempotency.unavailable(lost));
                }
                Err(Error::Mismatch) => return Err(Error::Mismatch),
                Ok(Standing::InFlight) | Err(_) => {}
            }
        }
        Err(if sent { self.idempotency.outcome_unknown() } else { self.idempotency.unavailable(lost) })
    }

    /// A handler that commits without having used its transaction has written elsewhere, or nothing.
    fn warn_of_unused(&self, tx: &Tx) {
        if !tx.was_used() && self.idempotency.unused().is_due(self.handler) {
            tracing::warn!(
                handler = self.handler,
                "no statement ran through the handler's transaction: what it wrote elsewhere is not protected against retries"
            );
        }
    }
}
