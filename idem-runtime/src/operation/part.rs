//! The transactions of an operation: each commits its writes together with a recovery point, the first one with the claim besides.

use super::{Broken, Hold, Interruption, Operation, Part};
use crate::error::Error;
use crate::lifecycle::completion::OneTransaction;
use crate::postgres::ending::{Escape, NotEnded};
use crate::postgres::sqlstate::{LOST_CLAIM, has_code, is_in_failed_transaction, is_lost, is_taken};
use crate::postgres::statements::{Mark, NewAttempt};
use crate::postgres::transaction::{Begin, Tx};

impl Operation {
    /// The transaction of the next part. It stays with the operation, which asks how it was left.
    pub(super) async fn begin_part(&mut self) -> Result<(), Error> {
        let part = match std::mem::replace(&mut self.hold, Hold::Gone) {
            Hold::Locked(part) => part,
            leased => {
                self.hold = leased;
                let mut begin = Begin {
                    handler: self.claim.handler,
                    key: self.claim.key.clone(),
                    mark: Mark::of_its_own(),
                    isolation: self.claim.isolation,
                    lease: self.claim.lease,
                    durable: true,
                };
                let tx = self.claim.idempotency.begin(&mut begin).await?;
                Box::new(Part { tx, known: OneTransaction::new(begin.mark, false) })
            }
        };
        self.part = Some(part);
        Ok(())
    }

    /// The transaction of the part that has begun.
    pub(super) fn part(&mut self) -> Result<&mut Tx, Error> {
        let unavailable = || Error::StepFailed { name: self.unfinished.clone().unwrap_or_default() };
        match &mut self.part {
            Some(part) => Ok(&mut part.tx),
            None => Err(unavailable()),
        }
    }

    fn is_leased(&self) -> bool {
        matches!(self.hold, Hold::Leased(_))
    }

    fn new_attempt(&self, part: &Part) -> NewAttempt<'_> {
        NewAttempt {
            fingerprint: &self.claim.fingerprint,
            request: &self.claim.request,
            replaces_expired: part.known.replaces_expired,
        }
    }

    /// Makes the part's writes and `line` durable. From the first of these commits on the claim is a row, and its lease is kept.
    pub(super) async fn commit_part(&mut self, line: &[u8]) -> Result<(), Error> {
        let Some(mut part) = self.part.take() else { return Ok(()) };
        let (statements, mark) = (self.claim.idempotency.statements(), &part.known.mark);
        let statement = if self.is_leased() {
            statements.commit_step(&self.steps(line), mark)
        } else {
            statements.commit_claim(&self.steps(line), &self.new_attempt(&part), mark)
        };
        self.undecided = true;
        let committed = part.tx.commit_with(&part.known.mark, statement).await;
        self.undecided = false;
        match committed {
            Ok(()) => {
                part.tx.finish();
                self.lease();
                Ok(())
            }
            Err(not_ended) => Err(self.not_committed(*part, not_ended).await),
        }
    }

    async fn not_committed(&mut self, part: Part, not_ended: NotEnded) -> Error {
        let error = match not_ended {
            NotEnded::Escaped(escape) => {
                drop(part);
                return self.escaped(escape).await;
            }
            NotEnded::Untidy(untidy) => {
                self.claim_anew(part).await;
                return Error::Untidy(untidy);
            }
            NotEnded::Failed(error) => error,
        };
        if let Some(lost) = part.tx.lost_connection() {
            self.given_back(part);
            return self.claim.idempotency.unavailable(lost);
        }
        if is_lost(&error) {
            // The commit may have happened. The next attempt reads what is recorded; this one must not go on.
            return self.fail(Broken::Unknown);
        }
        if has_code(&error, LOST_CLAIM) || is_taken(&error) {
            part.tx.finish();
            return self.fail(Broken::Lost);
        }
        if part.tx.met_conflict() && is_in_failed_transaction(&error) {
            self.given_back(part);
            return self.claim.idempotency.conflict(Some(error));
        }
        match self.claim.idempotency.not_executed(error) {
            error @ Error::Database(_) => {
                self.claim_anew(part).await;
                error
            }
            error => {
                self.given_back(part);
                error
            }
        }
    }

    /// The transaction is rolled back, and with the first one the claim is gone.
    fn given_back(&mut self, part: Part) {
        part.tx.finish();
        if !self.is_leased() {
            self.hold = Hold::Free;
        }
    }

    /// The server refused the first transaction, and the handler may have an answer to that: storing it needs a claim. Without one,
    /// because the database is away or a rival was faster, the attempt ends when it is checked.
    async fn claim_anew(&mut self, part: Part) {
        if self.is_leased() || part.tx.depth() != 1 || part.tx.is_out_of_step() {
            return self.given_back(part);
        }
        let attempt = self.new_attempt(&part);
        let statement = self.claim.idempotency.statements().claim_anew(&self.steps(b""), &attempt);
        let mut tx = part.tx;
        match tx.send(statement).await {
            Ok(()) => {
                tx.finish();
                self.lease();
            }
            Err(error) if is_lost(&error) => {}
            Err(error) => {
                tx.finish();
                if is_taken(&error) {
                    self.fail(Broken::Lost);
                }
            }
        }
    }

    /// Rolls the writes of a part back that has failed, or whose future was dropped. After the first one the claim itself is still to be
    /// made durable.
    pub(super) async fn roll_back_part(&mut self) -> Result<(), Error> {
        let Some(mut part) = self.part.take() else { return Ok(()) };
        if part.tx.met_conflict() {
            self.interruption.get_or_insert(Interruption::Conflict);
        }
        let leased = self.is_leased();
        let then = if leased {
            String::new()
        } else {
            self.claim.idempotency.statements().claim_alone(&self.steps(b""), &self.new_attempt(&part))
        };
        self.undecided = !leased;
        let rolled_back = part.tx.roll_back_and(&part.known.mark, &then).await;
        self.undecided = false;
        match rolled_back {
            Ok(()) => {
                part.tx.finish();
                self.lease();
                Ok(())
            }
            Err(NotEnded::Escaped(escape)) => {
                drop(part);
                Err(self.escaped(escape).await)
            }
            Err(NotEnded::Untidy(untidy)) => {
                self.claim_anew(*part).await;
                Err(Error::Untidy(untidy))
            }
            // The connection is closed, and what is open ends with it.
            Err(NotEnded::Failed(_)) if leased => Ok(()),
            Err(failed) => Err(self.not_committed(*part, failed).await),
        }
    }

    /// Final at once: what follows in the handler must find it, and whoever comes after a crash.
    async fn escaped(&mut self, escape: Escape) -> Error {
        self.claim.log_escape(escape);
        // A renewal that comes after it would find the row without a lease.
        self.hold = Hold::Gone;
        self.store_escape(escape).await;
        self.fail(Broken::Escaped)
    }
}
