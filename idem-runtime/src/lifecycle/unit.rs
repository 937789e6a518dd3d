//! What a handler works with, from the claim to the end.

use std::any::Any;
use std::panic::resume_unwind;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::claim::{Claim, Free, Standing};
use super::in_flight::Ticket;
use super::outcome::StoredResponse;
use crate::error::Error;
use crate::idempotency::Running;
use crate::postgres::ending::Untidy;
use crate::postgres::transaction::Stopped;
use crate::telemetry;

/// One transaction, or an operation of several.
pub(crate) trait Unit: Send + Sized + 'static {
    /// What tells it from another operation's. Kept apart from it: a handler that has two can exchange them.
    type Identity: Send + Sync;
    /// Whether it is made of several commits, with calls to other systems between them.
    const OF_STEPS: bool;

    /// Takes the claim that the look-up allows; `None` where someone else was faster.
    fn take(free: Free, claim: &Claim) -> impl Future<Output = Result<Option<(Self, Self::Identity)>, Error>> + Send;

    /// Ends the operation as `verdict` says, and asks whether the handler has kept to its transaction. When it returns, the key is
    /// free or has its outcome.
    fn end(
        self,
        identity: &Self::Identity,
        claim: &Claim,
        verdict: Verdict,
    ) -> impl Future<Output = Result<Ended, Error>> + Send;

    /// The error that came out of the handler says that it lost to a concurrent transaction.
    #[cfg_attr(not(feature = "axum"), expect(dead_code, reason = "a function's error is not looked through"))]
    fn note_conflict(&mut self);
}

/// What the handler's result means for its writes.
pub(crate) enum Verdict {
    /// 2xx, 3xx: the writes and the response, in one commit.
    Commit(StoredResponse),
    /// 4xx: the writes are rolled back, the refusal is stored.
    #[cfg_attr(not(feature = "axum"), expect(dead_code, reason = "a function's error has no status"))]
    Refuse(StoredResponse),
    /// 5xx and whatever must not be stored, an `Err`, a panic: nothing is left, the key is free.
    Release,
}

/// What the caller is told in the end.
pub(crate) enum Ended {
    /// The handler's own result.
    Own,
    /// The stored response of whoever completed this operation.
    Stored(StoredResponse),
}

/// A claim that is held, and what it gives to work with. Dropped before its end, it is released in a task of its own: what the
/// handler has done to its transaction is asked then, too.
pub(crate) struct Held<U: Unit> {
    /// `None` when it is being ended.
    inner: Option<Inner<U>>,
    /// Whether whoever waits for the end is a task that nobody can drop.
    outlives_its_caller: bool,
}

struct Inner<U: Unit> {
    unit: U,
    identity: U::Identity,
    claim: Claim,
    ticket: Option<Ticket<StoredResponse>>,
    running: Running,
}

/// How far a request for a claim has come.
#[expect(
    clippy::large_enum_variant,
    reason = "it lives for a moment, and an allocation would be made for every request"
)]
pub(crate) enum Acquired<U: Unit> {
    Held(Held<U>),
    Stored(StoredResponse),
}

/// What a handler or a function has made of its unit.
pub(crate) struct Worked<R> {
    pub(crate) result: R,
    /// An error in its place where the result has no stored form.
    pub(crate) verdict: Result<Verdict, Error>,
}

/// The result in the end.
pub(crate) enum Concluded<R> {
    Own(R),
    Stored(StoredResponse),
}

impl<U: Unit> Held<U> {
    /// Asks the database. `running` counts the operation in until its end.
    pub(crate) async fn acquire(
        claim: Claim,
        ticket: Option<Ticket<StoredResponse>>,
        deadline: Option<Instant>,
        running: Running,
        outlives_its_caller: bool,
    ) -> Result<Acquired<U>, Error> {
        loop {
            match claim.acquire(deadline).await? {
                Standing::Free(free) => {
                    if let Some((unit, identity)) = U::take(free, &claim).await? {
                        let ticket = ticket.inspect(Ticket::run);
                        let inner = Some(Inner { unit, identity, claim, ticket, running });
                        return Ok(Acquired::Held(Self { inner, outlives_its_caller }));
                    }
                    // Someone else was faster: it is in flight.
                    if deadline.is_some_and(|deadline| Instant::now() < deadline) {
                        continue;
                    }
                }
                Standing::Completed(stored) => {
                    if let Some(ticket) = ticket {
                        ticket.end(stored.clone());
                    }
                    return Ok(Acquired::Stored(stored));
                }
                Standing::InFlight => {}
            }
            // It runs in another process: the duplicates here need not ask one by one.
            ticket.inspect(Ticket::run);
            return Err(claim.idempotency.in_flight());
        }
    }

    pub(crate) fn unit(&mut self) -> &mut U {
        let inner = self.inner.as_mut();
        &mut inner.expect("a claim that is held has not ended: `conclude` takes it").unit
    }

    /// Ends the operation as the handler's result says, or its panic.
    pub(crate) async fn conclude<R>(
        self,
        worked: Result<Worked<R>, Box<dyn Any + Send>>,
    ) -> Result<Concluded<R>, Error> {
        match worked {
            Ok(Worked { result, verdict: Ok(verdict) }) => match self.end(verdict).await? {
                Ended::Own => Ok(Concluded::Own(result)),
                Ended::Stored(stored) => Ok(Concluded::Stored(stored)),
            },
            Ok(Worked { verdict: Err(error), .. }) => {
                self.end(Verdict::Release).await?;
                Err(error)
            }
            Err(panic) => {
                let ended = self.end(Verdict::Release).await;
                if panic.is::<Stopped>() {
                    ended?;
                    return Err(Error::Untidy(Untidy::SavepointFailed));
                }
                resume_unwind(panic)
            }
        }
    }

    async fn end(mut self, verdict: Verdict) -> Result<Ended, Error> {
        let Some(inner) = self.inner.take() else { return Ok(Ended::Own) };
        if self.outlives_its_caller {
            return inner.end(verdict).await;
        }
        let (handler, idempotency) = (inner.claim.handler, inner.claim.idempotency.clone());
        let (answer, ended) = oneshot::channel();
        tokio::spawn(async move {
            if let Err(Err(error)) = answer.send(inner.end(verdict).await) {
                // Nobody waits for it any more.
                telemetry::log(handler, &error);
            }
        });
        // Without an answer the Tokio runtime shuts down.
        ended.await.unwrap_or_else(|_| Err(idempotency.outcome_unknown()))
    }
}

impl<U: Unit> Inner<U> {
    /// The ticket goes last, after the database has let the key go.
    async fn end(self, verdict: Verdict) -> Result<Ended, Error> {
        let Self { unit, identity, claim, ticket, running } = self;
        let outcome = match &verdict {
            Verdict::Commit(stored) | Verdict::Refuse(stored) => ticket.is_some().then(|| stored.clone()),
            Verdict::Release => None,
        };
        let ended = unit.end(&identity, &claim, verdict).await;
        let outcome = match &ended {
            Ok(Ended::Own) => outcome,
            Ok(Ended::Stored(stored)) => Some(stored.clone()),
            Err(Error::EffectsUnknown) => Some(StoredResponse::effects_unknown()),
            Err(_) => None,
        };
        if let (Some(ticket), Some(outcome)) = (ticket, outcome) {
            ticket.end(outcome);
        }
        drop(running);
        ended
    }
}

impl<U: Unit> Drop for Held<U> {
    fn drop(&mut self) {
        // Without a runtime the connection is closed, and Postgres rolls back what is open.
        if let (Some(inner), Ok(runtime)) = (self.inner.take(), Handle::try_current()) {
            runtime.spawn(async move {
                // The ending that finds something tells of it.
                let _ = inner.end(Verdict::Release).await;
            });
        }
    }
}
