//! Without a key each request is an operation of its own, in a plain transaction. Nothing is stored, and every ending asks the same
//! questions.

use std::panic::{AssertUnwindSafe, resume_unwind};
use std::time::Duration;

use futures_util::FutureExt;

use super::handler::{Answer, Handler, LostConflict, survive_hang_up};
use crate::detached::Attached;
use crate::error::Error;
use crate::idempotency::Idempotency;
use crate::key::IdempotencyKey;
use crate::postgres::ending::{Escape, NotEnded, Untidy};
use crate::postgres::sqlstate::{Answer as Says, answer, is_in_failed_transaction};
use crate::postgres::statements::{Isolation, Mark};
use crate::postgres::transaction::{Begin, Stopped, Tx};
use crate::telemetry::{Outcome, Telemetry};

/// A request without a key.
pub(crate) struct Unkeyed {
    pub(crate) idempotency: Idempotency,
    pub(crate) handler: &'static str,
    pub(crate) isolation: Option<Isolation>,
    pub(crate) lease: Duration,
}

impl Unkeyed {
    pub(crate) async fn answer(self, telemetry: Telemetry, handler: Handler<Tx>) -> Result<Answer, Error> {
        let idempotency = self.idempotency.clone();
        survive_hang_up(&idempotency, telemetry, |attached| Box::pin(self.run(attached, handler))).await
    }

    async fn run(self, attached: Attached, handler: Handler<Tx>) -> Result<Answer, Error> {
        let _running = self.idempotency.count_in();
        attached.wait_for_room().await?;
        let mut begin = Begin {
            handler: self.handler,
            key: IdempotencyKey::random(),
            mark: Mark::of_its_own(),
            isolation: self.isolation,
            lease: self.lease,
            durable: false,
        };
        let mut tx = self.idempotency.begin(&mut begin).await?;
        if !attached.begin() {
            tx.finish();
            return Err(Error::Abandoned);
        }
        let mark = begin.mark;
        let mut response = match AssertUnwindSafe(handler(&mut tx)).catch_unwind().await {
            Ok(response) => response,
            Err(panic) => {
                let ended = self.roll_back(tx, &mark).await;
                if panic.is::<Stopped>() {
                    ended?;
                    return Err(Error::Untidy(Untidy::SavepointFailed));
                }
                resume_unwind(panic)
            }
        };
        let lost_conflict = response.extensions_mut().remove::<LostConflict>().is_some();
        let status = response.status();
        if (status.is_success() || status.is_redirection()) && !lost_conflict {
            self.commit(tx, &mark).await?;
        } else {
            let conflict = lost_conflict || (tx.met_conflict() && status.is_server_error());
            self.roll_back(tx, &mark).await?;
            if conflict {
                return Err(self.idempotency.conflict(None));
            }
        }
        Ok(Answer { response, outcome: Outcome::Unkeyed })
    }

    async fn roll_back(&self, mut tx: Tx, mark: &Mark) -> Result<(), Error> {
        match tx.roll_back_and(mark, "").await {
            Ok(()) => tx.finish(),
            Err(NotEnded::Escaped(escape)) => return Err(self.escaped(escape)),
            Err(NotEnded::Untidy(untidy)) => {
                tracing::error!(handler = self.handler, "{untidy}");
                tx.finish();
            }
            Err(NotEnded::Failed(_)) => {}
        }
        Ok(())
    }

    async fn commit(&self, mut tx: Tx, mark: &Mark) -> Result<(), Error> {
        let statement = self.idempotency.statements().commit(mark);
        let error = match tx.commit_with(mark, statement).await {
            Ok(()) => {
                tx.finish();
                return Ok(());
            }
            Err(NotEnded::Escaped(escape)) => return Err(self.escaped(escape)),
            Err(NotEnded::Untidy(untidy)) => {
                tx.finish();
                return Err(Error::Untidy(untidy));
            }
            Err(NotEnded::Failed(error)) => error,
        };
        if let Some(lost) = tx.lost_connection() {
            return Err(self.idempotency.unavailable(lost));
        }
        if answer(&error) == Says::Unknown {
            return Err(Error::UnkeyedOutcomeUnknown);
        }
        let conflict = tx.met_conflict() && is_in_failed_transaction(&error);
        tx.release_connection(&error);
        Err(if conflict { self.idempotency.conflict(Some(error)) } else { self.idempotency.not_executed(error) })
    }

    fn escaped(&self, escape: Escape) -> Error {
        tracing::error!(
            handler = self.handler,
            "{escape}. What the request has changed is not known, and without a key nothing keeps a retry from repeating it"
        );
        Error::EffectsUnknown
    }
}
