//! How an operation of several commits ends.

use std::collections::HashSet;

use super::lease::Lease;
use super::{Hold, Interruption, Operation, Part, recovery_points};
use crate::error::Error;
use crate::lifecycle::claim::{Claim, Free, Place};
use crate::lifecycle::completion::OneTransaction;
use crate::lifecycle::outcome::StoredResponse;
use crate::lifecycle::unit::{Ended, Unit, Verdict};
use crate::postgres::ending::Escape;
use crate::postgres::sqlstate::{LOST_CLAIM, has_code};

impl Unit for Operation {
    /// The fencing token.
    type Identity = i64;
    const OF_STEPS: bool = true;

    async fn take(free: Free, claim: &Claim) -> Result<Option<(Self, i64)>, Error> {
        let Free { mut tx, mark, place } = free;
        let token = fastrand::i64(1..);
        let mut operation = Self::unclaimed(claim, token);
        match place {
            Place::Absent { expired } => {
                let known = OneTransaction::new(mark, expired);
                operation.hold = Hold::Locked(Box::new(Part { tx, known }));
            }
            Place::Abandoned(abandoned) => {
                operation.recorded = recovery_points::read(&abandoned.recovery_points)?;
                let take_over = claim.idempotency.statements().take_over(&operation.steps(b""), &abandoned);
                match tx.send(take_over).await {
                    Ok(()) => tx.finish(),
                    Err(error) if has_code(&error, LOST_CLAIM) => {
                        tx.finish();
                        return Ok(None);
                    }
                    Err(error) => return Err(claim.idempotency.not_executed(error)),
                }
                operation.lease();
            }
        }
        Ok(Some((operation, token)))
    }

    async fn end(mut self, token: &i64, claim: &Claim, verdict: Verdict) -> Result<Ended, Error> {
        if self.token != *token {
            claim.log_escape(Escape::Swapped);
            Self::unclaimed(claim, *token).store_escape(Escape::Swapped).await;
            return Err(Error::EffectsUnknown);
        }
        // A part whose future was dropped, or that panicked.
        if let Err(error) = self.roll_back_part().await {
            self.interrupt(error);
        }
        if let Some(broken @ super::Broken::Escaped) = &self.broken {
            return Err(self.error(broken));
        }
        if let Hold::Locked(mut part) = self.hold {
            // No part was run: it is an operation of one transaction.
            if self.lost_conflict {
                part.tx.note_conflict();
            }
            return part.tx.end(&part.known, claim, verdict).await;
        }
        let stored = match verdict {
            // That the database was away is no outcome of the handler's, even where failures are outcomes.
            Verdict::Refuse(stored) if stored.status < 500 || self.interruption.is_none() => stored,
            Verdict::Commit(stored) => stored,
            Verdict::Refuse(_) | Verdict::Release => {
                let conflict = self.lost_conflict || matches!(self.interruption, Some(Interruption::Conflict));
                self.abandon().await;
                return if conflict { Err(claim.idempotency.conflict(None)) } else { Ok(Ended::Own) };
            }
        };
        self.complete_with(claim, stored).await
    }

    fn note_conflict(&mut self) {
        self.lost_conflict = true;
    }
}

impl Operation {
    fn unclaimed(claim: &Claim, token: i64) -> Self {
        Self {
            claim: claim.clone(),
            token,
            hold: Hold::Gone,
            recorded: Vec::new(),
            position: 0,
            names: HashSet::new(),
            unfinished: None,
            interruption: None,
            broken: None,
            part: None,
            undecided: false,
            lost_conflict: false,
        }
    }

    async fn complete_with(mut self, claim: &Claim, stored: StoredResponse) -> Result<Ended, Error> {
        if self.position < self.recorded.len() {
            self.changed(None);
        }
        if let Err(error) = self.check() {
            let lost = matches!(error, Error::LostClaim);
            self.abandon().await;
            return if lost { claim.rival().await } else { Err(error) };
        }
        if let Some(error) = self.disallowed(&stored) {
            self.abandon().await;
            return Err(error);
        }
        match self.complete(&stored, None).await {
            Ok(true) => {
                claim.idempotency.recent().note(claim.lock);
                Ok(Ended::Own)
            }
            Ok(false) => claim.rival().await,
            Err(error) => {
                self.abandon().await;
                Err(error)
            }
        }
    }

    /// Stores that the effects are not known: in the operation's row, if there is one yet.
    pub(super) async fn store_escape(&self, escape: Escape) {
        let reason = escape.to_string();
        if !matches!(self.complete(&StoredResponse::effects_unknown(), Some(&reason)).await, Ok(true)) {
            self.claim.store_effects_unknown(escape).await;
        }
    }

    async fn abandon(mut self) {
        if let Hold::Leased(lease) = std::mem::replace(&mut self.hold, Hold::Gone) {
            // A renewal that comes after it would take back what is given.
            drop::<Lease>(lease);
            if let Err(error) = self.give_back().await {
                tracing::warn!(handler = self.claim.handler, %error, "a lease could not be given back; it runs out by itself");
            }
        }
    }
}
