//! A handler runs in a task of its own: a client that hangs up must not leave it half done.

use std::panic::{AssertUnwindSafe, resume_unwind};
use std::pin::Pin;
use std::time::Duration;

use axum::response::Response;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::time::Instant;
use tracing::Instrument;

use crate::error::Error;
use crate::idempotency::Idempotency;
use crate::key::IdempotencyKey;
use crate::lifecycle::claim::{Claim, Entered, Standing, Unit, is_lost};
use crate::lifecycle::completion::{Ended, Verdict, code};
use crate::lifecycle::in_flight::Ticket;
use crate::lifecycle::outcome::StoredResponse;
use crate::postgres::statements::{Isolation, Statements, commit};
use crate::postgres::transaction::{Tx, is_conflict};
use crate::response;
use crate::telemetry::Outcome;

/// The future of a handler over its transaction or its operation.
pub(crate) type HandlerFuture<'a> = Pin<Box<dyn Future<Output = Response> + Send + 'a>>;

/// A handler with its other arguments bound.
pub(crate) type Handler<U> = Box<dyn for<'a> FnOnce(&'a mut U) -> HandlerFuture<'a> + Send>;

/// What the client gets, and what to call it.
pub(crate) struct Answer {
    pub(crate) response: Response,
    pub(crate) outcome: Outcome,
}

/// A claim on the way to its answer.
pub(crate) struct Execution {
    pub(crate) claim: Claim,
    pub(crate) replay_failures: bool,
}

impl Execution {
    /// Meets the operations in flight in this process first: their duplicates are answered without the database.
    pub(crate) async fn enter<U: Unit + 'static>(self, handler: Handler<U>) -> Result<Answer, Error> {
        let deadline = self.claim.wait.map(|limit| Instant::now() + limit);
        match self.claim.enter(deadline).await? {
            Entered::Ours(ticket) => {
                if let Some(stored) = self.claim.recall().await? {
                    return self.replay_and_end(stored, ticket);
                }
                let idempotency = self.claim.idempotency.clone();
                survive_hang_up(&idempotency, Box::pin(self.run(ticket, deadline, handler))).await
            }
            Entered::Stored(stored) => self.replay(&stored),
        }
    }

    async fn run<U: Unit>(
        self,
        ticket: Option<Ticket<StoredResponse>>,
        deadline: Option<Instant>,
        handler: Handler<U>,
    ) -> Result<Answer, Error> {
        match self.claim.stand(deadline).await? {
            Standing::InFlight => {
                // It runs in another process: the duplicates here need not ask one by one.
                ticket.inspect(Ticket::run);
                Err(self.claim.idempotency.in_flight())
            }
            Standing::Claimed(unit) => self.execute(unit, ticket, handler).await,
            Standing::Completed(stored) => self.replay_and_end(stored, ticket),
        }
    }

    /// The ticket goes last, after the database has let the key go.
    async fn execute<U: Unit>(
        &self,
        mut unit: U,
        ticket: Option<Ticket<StoredResponse>>,
        handler: Handler<U>,
    ) -> Result<Answer, Error> {
        let ticket = ticket.inspect(Ticket::run);
        let (response, verdict) = match AssertUnwindSafe(self.judge(handler(&mut unit))).catch_unwind().await {
            Ok(Ok(judged)) => judged,
            Ok(Err(error)) => {
                unit.abandon().await;
                return Err(error);
            }
            Err(panic) => {
                unit.abandon().await;
                drop(ticket);
                resume_unwind(panic)
            }
        };
        let outcome = if matches!(verdict, Verdict::Release) { Outcome::Released } else { Outcome::Claimed };
        match unit.end(&self.claim, verdict, ticket).await? {
            Ended::Own => Ok(Answer { response, outcome }),
            Ended::Stored(stored) => self.replay(&stored),
        }
    }

    async fn judge(&self, response: HandlerFuture<'_>) -> Result<(Response, Verdict), Error> {
        let response = response.await;
        let settings = self.claim.idempotency.settings();
        let status = response.status();
        let failed = status.is_server_error() && !self.replay_failures;
        if failed || settings.never_stored.contains(&status.as_u16()) {
            return Ok((response, Verdict::Release));
        }
        let (response, stored) =
            response::store(response, settings.response_limit).await.map_err(Error::NotStorable)?;
        let succeeded = status.is_success() || status.is_redirection();
        Ok((response, if succeeded { Verdict::Commit(stored) } else { Verdict::Refuse(stored) }))
    }

    fn replay_and_end(&self, stored: StoredResponse, ticket: Option<Ticket<StoredResponse>>) -> Result<Answer, Error> {
        let answer = self.replay(&stored);
        if let Some(ticket) = ticket {
            ticket.end(stored);
        }
        answer
    }

    fn replay(&self, stored: &StoredResponse) -> Result<Answer, Error> {
        let response = stored.replay(&self.claim.idempotency.settings().replay_header);
        let unreadable =
            || Error::Database(sqlx::Error::Decode("the stored response must be one that this crate wrote".into()));
        Ok(Answer { response: response.ok_or_else(unreadable)?, outcome: Outcome::Replayed })
    }
}

/// Runs an operation to its end whether or not its caller still waits; a panic in it becomes the caller's.
async fn survive_hang_up(
    idempotency: &Idempotency,
    operation: BoxFuture<'static, Result<Answer, Error>>,
) -> Result<Answer, Error> {
    let running = idempotency.count_in();
    let counted = async move {
        let answer = operation.await;
        drop(running);
        answer
    };
    match tokio::spawn(counted.in_current_span()).await {
        Ok(answer) => answer,
        Err(error) if error.is_panic() => resume_unwind(error.into_panic()),
        // The Tokio runtime shuts down.
        Err(_) => Err(idempotency.unavailable(sqlx::Error::WorkerCrashed)),
    }
}

/// Without a key each request is an operation of its own, in a plain transaction.
pub(crate) async fn unkeyed(
    idempotency: Idempotency,
    isolation: Option<Isolation>,
    lease: Duration,
    handler: Handler<Tx>,
) -> Result<Answer, Error> {
    let handle = idempotency.clone();
    survive_hang_up(&handle, Box::pin(run_unkeyed(idempotency, isolation, lease, handler))).await
}

async fn run_unkeyed(
    idempotency: Idempotency,
    isolation: Option<Isolation>,
    lease: Duration,
    handler: Handler<Tx>,
) -> Result<Answer, Error> {
    let connection = idempotency.connection().await?;
    let statement = Statements::begin_unkeyed(isolation, lease);
    let begun = Tx::begin(&idempotency, connection, IdempotencyKey::random(), statement, lease).await;
    let mut tx = begun.map_err(|error| idempotency.refused(error))?;
    let response = match AssertUnwindSafe(handler(&mut tx)).catch_unwind().await {
        Ok(response) => response,
        Err(panic) => {
            tx.roll_back().await;
            resume_unwind(panic)
        }
    };
    let status = response.status();
    if status.is_success() || status.is_redirection() {
        commit_unkeyed(&idempotency, tx).await?;
    } else {
        let conflict = tx.met_conflict();
        tx.roll_back().await;
        if conflict && status.is_server_error() {
            return Err(idempotency.unavailable(sqlx::Error::BeginFailed));
        }
    }
    Ok(Answer { response, outcome: Outcome::Unkeyed })
}

async fn commit_unkeyed(idempotency: &Idempotency, mut tx: Tx) -> Result<(), Error> {
    if !tx.is_outermost() {
        tx.roll_back().await;
        return Err(Error::Escaped);
    }
    let Err(error) = tx.send(commit()).await else {
        tx.finish();
        return Ok(());
    };
    if is_lost(&error) {
        return Err(Error::UnkeyedOutcomeUnknown);
    }
    let conflict = tx.met_conflict() || is_conflict(&error);
    tx.roll_back().await;
    Err(match code(&error).as_deref() {
        Some("25P01") => Error::Escaped,
        _ if conflict => idempotency.unavailable(error),
        _ => Error::Database(error),
    })
}
