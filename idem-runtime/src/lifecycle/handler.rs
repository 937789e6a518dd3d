//! A handler runs in a task of its own: a client that hangs up must not leave it half done.

use std::panic::{AssertUnwindSafe, resume_unwind};
use std::pin::Pin;

use axum::response::Response;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::Method;
use tokio::time::Instant;
use tracing::Instrument;

use super::claim::{Claim, Entered};
use super::in_flight::Ticket;
use super::outcome::StoredResponse;
use super::unit::{Acquired, Concluded, Held, Unit, Verdict, Worked};
use crate::detached::Attached;
use crate::error::Error;
use crate::idempotency::Idempotency;
use crate::response;
use crate::telemetry::{Outcome, Telemetry};

/// An extension of a response whose handler returned an error that leads to a lost conflict.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LostConflict;

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
    pub(crate) method: Method,
    /// Whether the request's body could be read.
    pub(crate) is_whole: bool,
    pub(crate) replay_failures: bool,
}

impl Execution {
    /// Meets the operations in flight in this process first: their duplicates are answered without the database.
    pub(crate) async fn answer<U: Unit>(self, telemetry: Telemetry, handler: Handler<U>) -> Result<Answer, Error> {
        let deadline = self.claim.wait.map(|limit| Instant::now() + limit);
        let ticket = match self.meet(deadline).instrument(telemetry.span()).await {
            Ok(Met::Ours(ticket)) => ticket,
            Ok(Met::Stored(stored)) => return telemetry.finish(self.replay(&stored)),
            Err(error) => return telemetry.finish(Err(error)),
        };
        let idempotency = self.claim.idempotency.clone();
        survive_hang_up(&idempotency, telemetry, |attached| Box::pin(self.run(ticket, deadline, attached, handler)))
            .await
    }

    async fn meet(&self, deadline: Option<Instant>) -> Result<Met, Error> {
        match self.claim.enter(deadline).await? {
            Entered::Ours(ticket) => match self.claim.read_completed().await? {
                Some(stored) => {
                    if let Some(ticket) = ticket {
                        ticket.end(stored.clone());
                    }
                    Ok(Met::Stored(stored))
                }
                None => Ok(Met::Ours(ticket)),
            },
            Entered::Stored(stored) => Ok(Met::Stored(StoredResponse::clone(&stored))),
        }
    }

    async fn run<U: Unit>(
        self,
        ticket: Option<Ticket<StoredResponse>>,
        deadline: Option<Instant>,
        attached: Attached,
        handler: Handler<U>,
    ) -> Result<Answer, Error> {
        let running = self.claim.idempotency.count_in();
        attached.wait_for_room().await?;
        let mut held = match Held::<U>::acquire(self.claim.clone(), ticket, deadline, running, true).await? {
            Acquired::Held(held) => held,
            Acquired::Stored(stored) => return self.replay(&stored),
        };
        if !attached.begin() {
            // Nobody waits for it any more, and nothing has begun: the drop lets the key go.
            return Err(Error::Abandoned);
        }
        let worked = AssertUnwindSafe(async {
            let mut response = handler(held.unit()).await;
            let lost_conflict = response.extensions_mut().remove::<LostConflict>().is_some();
            if lost_conflict {
                held.unit().note_conflict();
            }
            self.judge(response, lost_conflict).await
        });
        let worked = worked.catch_unwind().await;
        let released = matches!(&worked, Ok(Worked { verdict: Ok(Verdict::Release), .. }));
        match held.conclude(worked).await? {
            Concluded::Own(response) => {
                let outcome = if released { Outcome::Released } else { Outcome::Claimed };
                Ok(Answer { response, outcome })
            }
            Concluded::Stored(stored) => self.replay(&stored),
        }
    }

    async fn judge(&self, response: Response, lost_conflict: bool) -> Worked<Response> {
        let settings = self.claim.idempotency.settings();
        let status = response.status();
        let failed = status.is_server_error() && !self.replay_failures;
        // A HEAD request asks what a GET would answer, and changes nothing.
        let asks = self.method == Method::HEAD;
        // What refuses half a request says nothing about the whole one, which has the same key.
        let refuses_half = status.is_client_error() && !self.is_whole;
        if failed || asks || refuses_half || lost_conflict || settings.never_stored.contains(&status.as_u16()) {
            return Worked { result: response, verdict: Ok(Verdict::Release) };
        }
        let succeeded = status.is_success() || status.is_redirection();
        match response::store(response, settings.response_limit).await {
            Ok((result, stored)) => {
                let verdict = if succeeded { Verdict::Commit(stored) } else { Verdict::Refuse(stored) };
                Worked { result, verdict: Ok(verdict) }
            }
            Err(problem) => Worked { result: Response::default(), verdict: Err(Error::NotStorable(problem)) },
        }
    }

    fn replay(&self, stored: &StoredResponse) -> Result<Answer, Error> {
        let settings = self.claim.idempotency.settings();
        let response = if stored.is_effects_unknown() {
            let mut response = self.claim.idempotency.respond(&Error::EffectsUnknown);
            response.headers_mut().insert(&settings.replay_header, http::HeaderValue::from_static("true"));
            Some(response)
        } else {
            stored.replay(&settings.replay_header)
        };
        let unreadable =
            || Error::Database(sqlx::Error::Decode("the stored response must be one that this crate wrote".into()));
        Ok(Answer { response: response.ok_or_else(unreadable)?, outcome: Outcome::Replayed })
    }
}

/// What a request met before it asked the database for the key.
enum Met {
    Ours(Option<Ticket<StoredResponse>>),
    Stored(StoredResponse),
}

/// Runs an operation to its end whether or not its caller still waits; a panic in it becomes the caller's. What is told of it
/// is told by the task that does the work.
pub(crate) async fn survive_hang_up(
    idempotency: &Idempotency,
    telemetry: Telemetry,
    operation: impl FnOnce(Attached) -> BoxFuture<'static, Result<Answer, Error>>,
) -> Result<Answer, Error> {
    let (attached, client) = idempotency.attach();
    let span = telemetry.span();
    let operation = operation(attached);
    let task = tokio::spawn(
        async move {
            match AssertUnwindSafe(operation).catch_unwind().await {
                Ok(answer) => telemetry.finish(answer),
                Err(panic) => {
                    telemetry.finish_panicked();
                    resume_unwind(panic)
                }
            }
        }
        .instrument(span),
    );
    let ended = task.await;
    client.stays();
    match ended {
        Ok(answer) => answer,
        Err(error) if error.is_panic() => resume_unwind(error.into_panic()),
        // The Tokio runtime shuts down.
        Err(_) => Err(idempotency.unavailable(sqlx::Error::WorkerCrashed)),
    }
}
