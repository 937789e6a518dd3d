//! A charge at a provider cannot be rolled back, so an operation that makes one is cut into steps with a recovery point
//! after each. A retry resumes after the last one.
//!
//! The claim is a row with a lease and a fencing token. Every statement of the owner checks the token, and that it
//! touched its row: an owner that lost the lease can change nothing any more.
//!
//! `tests/model/lease/` is this protocol as a model, in which every order of its steps is checked: a change here is a
//! change there, in the same commit.

mod ending;
mod lease;
mod name;
mod part;
pub(crate) mod recovery_points;
mod step;

use std::collections::HashSet;
use std::fmt;

use serde::de::DeserializeOwned;
use sqlx::Postgres;
use sqlx::pool::PoolConnection;
use tokio::time::sleep;

use crate::attribute::{FromError, Recorded};
use crate::error::Error;
use crate::key::IdempotencyKey;
use crate::lifecycle::claim::Claim;
use crate::lifecycle::completion::{OneTransaction, RESOLVE_PAUSES};
use crate::lifecycle::outcome::StoredResponse;
use crate::postgres::sqlstate::is_lost;
use crate::postgres::statements::{Isolation, Steps};
use crate::postgres::transaction::Tx;

use lease::{Lease, Rest};
pub use name::StepName;
use recovery_points::RecoveryPoint;
pub use step::{Reconciled, Step};

/// A handler's hold on an operation of several commits: the multi-step twin of [`Tx`].
///
/// [`transaction`](Self::transaction) commits writes together with a recovery point; [`step`](Self::step) calls another
/// system and records its answer. On a retry, recorded parts are not run again: their results are given back.
///
/// The parts must be the same, in the same order, on every attempt: what happens between them must depend on the
/// request and on recorded results only.
pub struct Operation {
    claim: Claim,
    token: i64,
    hold: Hold,
    recorded: Vec<RecoveryPoint>,
    /// How many parts this attempt has come by.
    position: usize,
    names: HashSet<String>,
    /// The part that is under way, or that ended without a result.
    unfinished: Option<String>,
    /// Why a part ended that its own code did not end.
    interruption: Option<Interruption>,
    broken: Option<Broken>,
    /// The transaction of the part that is under way. It stays here while the handler has it, so that the end can ask for it
    /// whatever becomes of the part's future.
    part: Option<Box<Part>>,
    /// A part's commit has been sent and not been answered.
    undecided: bool,
    /// The error that came out of the handler says that it lost to a concurrent transaction.
    lost_conflict: bool,
}

/// A transaction of the operation.
struct Part {
    tx: Tx,
    known: OneTransaction,
}

/// What stopped a part beside its own code: it bounds what the handler may answer.
#[derive(Debug)]
enum Interruption {
    /// The server refused the part's writes. The handler may refuse the request for it; it has not succeeded.
    Refused { name: String },
    /// A mistake of the handler's: it has no outcome.
    Mistake { name: String },
    /// The database could not be used: there is no outcome yet.
    Unavailable { name: String },
    /// The part lost to a concurrent transaction, which the next attempt may win.
    Conflict,
}

enum Hold {
    /// The claim is a lock in this transaction: nothing is committed yet.
    Locked(Box<Part>),
    /// The claim is a row of ours.
    Leased(Lease),
    /// The transaction that held the claim was rolled back, and nothing is left of it.
    Free,
    /// The claim is with the part that is under way, or lost.
    Gone,
}

/// Why an attempt must end, whatever its handler returns.
#[derive(Debug, Clone)]
enum Broken {
    Lost,
    Unknown,
    Changed { recorded: Option<String>, asked: Option<String> },
    Escaped,
}

impl Operation {
    /// The request's idempotency key.
    #[must_use]
    pub fn key(&self) -> &IdempotencyKey {
        &self.claim.key
    }

    /// Runs `body` in a transaction and commits its writes together with the recovery point `name`.
    ///
    /// An `Err` of `body` rolls its writes back, records nothing and comes out as it is; no other part may follow it in this
    /// attempt, since a retry could not come by the same way. A failure to act upon is a result: `Ok(Declined)`. If the
    /// recovery point was recorded by an earlier attempt, `body` does not run and its recorded result is returned.
    ///
    /// # Errors
    /// As `E::from`: [`Error::Database`] when the server refuses the commit (a deferred constraint), [`Error::LostClaim`]
    /// when another attempt has taken over, [`Error::StepsChanged`], [`Error::DuplicateStep`], [`Error::StepFailed`],
    /// [`Error::EffectsUnknown`], [`Error::Untidy`], [`Error::Conflict`], [`Error::Unavailable`], [`Error::OutcomeUnknown`],
    /// [`Error::Json`].
    ///
    /// After any of them there is no success: a 2xx or 3xx is answered with 500 or 503 instead, and nothing is stored. A 4xx is
    /// an outcome after [`Error::Database`] only.
    pub async fn transaction<T, E>(
        &mut self,
        name: impl StepName,
        body: impl AsyncFnOnce(&mut Tx) -> Result<T, E>,
    ) -> Result<T, E>
    where
        T: Recorded,
        E: FromError,
    {
        let name = &*name.recorded();
        if let Some(point) = self.come_by(name)? {
            let Some(result) = self.result_of(&point)? else {
                // A call to another system was started in this place.
                self.position -= 1;
                let changed = self.changed(Some(name));
                return Err(self.interrupt(changed).into());
            };
            self.unfinished = None;
            return Ok(result);
        }
        let _rest = self.rest();
        if let Err(error) = self.begin_part().await {
            return Err(self.interrupt(error).into());
        }
        let result = match body(self.part()?).await {
            Ok(result) => result,
            Err(error) => {
                self.roll_back_part().await.map_err(|error| self.interrupt(error))?;
                return Err(error);
            }
        };
        match recovery_points::finished(name, &result) {
            Ok(line) => self.commit_part(&line).await.map_err(|error| self.interrupt(error))?,
            Err(error) => {
                let error = self.interrupt(error);
                self.roll_back_part().await.map_err(|error| self.interrupt(error))?;
                return Err(error.into());
            }
        }
        self.unfinished = None;
        Ok(result)
    }

    /// Calls another system: `call` gets the [derived key](IdempotencyKey::derive) of `name`, the same on every attempt, and its result is
    /// recorded before the next line runs.
    ///
    /// An `Err` records nothing, and no other part may follow it in this attempt. A call that started and has no recorded
    /// result may have happened: the next attempt makes it again with the same key. For a system that knows no keys, add
    /// [`reconcile`](Step::reconcile).
    ///
    /// # Errors
    /// When awaited: `call`'s own, and as `E::from` those of [`transaction`](Self::transaction).
    pub fn step<'a, F, Fut, T, E>(&'a mut self, name: impl StepName, call: F) -> Step<'a, T, E>
    where
        F: FnOnce(IdempotencyKey) -> Fut + Send + 'a,
        Fut: Future<Output = Result<T, E>> + Send + 'a,
        T: Recorded,
        E: FromError,
    {
        let name = name.recorded().into_owned();
        Step::new(self, name, Box::new(move |key| Box::pin(call(key))))
    }

    /// The next part's recovery point, if an earlier attempt recorded one here.
    fn come_by(&mut self, name: &str) -> Result<Option<RecoveryPoint>, Error> {
        self.next_point(name).map_err(|error| self.interrupt(error))
    }

    fn result_of<T: DeserializeOwned>(&mut self, point: &RecoveryPoint) -> Result<Option<T>, Error> {
        point.result().map_err(|error| self.interrupt(error))
    }

    fn next_point(&mut self, name: &str) -> Result<Option<RecoveryPoint>, Error> {
        self.check()?;
        if let Some(name) = &self.unfinished {
            return Err(Error::StepFailed { name: name.clone() });
        }
        if !self.names.insert(name.to_owned()) {
            return Err(Error::DuplicateStep { name: name.to_owned() });
        }
        let point = self.recorded.get(self.position).cloned();
        self.position += 1;
        match point {
            Some(point) if point.name != name => {
                self.position -= 1;
                Err(self.changed(Some(name)))
            }
            point => {
                self.unfinished = Some(name.to_owned());
                Ok(point)
            }
        }
    }

    /// Ends the attempt: the parts asked for are not those recorded.
    fn changed(&mut self, asked: Option<&str>) -> Error {
        let recorded = self.recorded.get(self.position).map(|point| point.name.clone());
        self.fail(Broken::Changed { recorded, asked: asked.map(str::to_owned) })
    }

    fn fail(&mut self, broken: Broken) -> Error {
        let error = self.error(&broken);
        self.broken = Some(broken);
        error
    }

    /// Remembers that `error` ended a part. The first one counts: it is what the later ones come from.
    fn interrupt(&mut self, error: Error) -> Error {
        let name = || self.unfinished.clone().unwrap_or_default();
        let interruption = match &error {
            Error::Database(_) => Interruption::Refused { name: name() },
            Error::DuplicateStep { name } | Error::StepFailed { name } => Interruption::Mistake { name: name.clone() },
            Error::Untidy(_) | Error::Json(_) => Interruption::Mistake { name: name() },
            Error::Conflict { .. } => Interruption::Conflict,
            _ => Interruption::Unavailable { name: name() },
        };
        if self.interruption.is_none() {
            let source = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
            tracing::warn!(handler = self.claim.handler, part = name(), source, "a part was interrupted: {error}");
        }
        self.interruption.get_or_insert(interruption);
        error
    }

    /// The answer in place of one that an interruption does not allow.
    fn disallowed(&self, stored: &StoredResponse) -> Option<Error> {
        let refused = stored.status >= 400;
        match self.interruption.as_ref()? {
            Interruption::Refused { .. } if refused => None,
            Interruption::Refused { name } | Interruption::Mistake { name } => {
                Some(Error::StepFailed { name: name.clone() })
            }
            Interruption::Unavailable { name } => {
                Some(Error::Interrupted { name: name.clone(), retry_after: self.claim.idempotency.retry_after() })
            }
            Interruption::Conflict => Some(self.claim.idempotency.conflict(None)),
        }
    }

    fn error(&self, broken: &Broken) -> Error {
        match broken {
            Broken::Lost => Error::LostClaim,
            Broken::Unknown => self.claim.idempotency.outcome_unknown(),
            Broken::Escaped => Error::EffectsUnknown,
            Broken::Changed { recorded, asked } => {
                Error::StepsChanged { recorded: recorded.clone(), asked: asked.clone() }
            }
        }
    }

    fn check(&mut self) -> Result<(), Error> {
        match &self.hold {
            Hold::Leased(lease) if lease.is_lost() => _ = self.broken.get_or_insert(Broken::Lost),
            // The first transaction's commit was dropped or not answered.
            Hold::Gone => _ = self.broken.get_or_insert(Broken::Unknown),
            _ => {}
        }
        if self.undecided {
            self.broken.get_or_insert(Broken::Unknown);
        }
        match &self.broken {
            Some(broken) => Err(self.error(broken)),
            None => Ok(()),
        }
    }

    /// Under these isolations a renewal in the middle of a transaction would make its commit fail (40001), and a transaction
    /// longer than the pause between two renewals could never commit. One longer than the whole lease may be taken over.
    fn rest(&self) -> Option<Rest> {
        match (&self.hold, self.claim.isolation) {
            (Hold::Leased(lease), Some(Isolation::RepeatableRead | Isolation::Serializable)) => Some(lease.rest()),
            _ => None,
        }
    }

    fn steps<'a>(&'a self, recovery_points: &'a [u8]) -> Steps<'a> {
        Steps { id: &self.claim.id, token: self.token, lease: self.claim.lease, recovery_points }
    }

    /// A call to another system may follow: the claim must outlive this process.
    async fn ensure_leased(&mut self) -> Result<(), Error> {
        match std::mem::replace(&mut self.hold, Hold::Gone) {
            Hold::Locked(part) => {
                self.part = Some(part);
                self.commit_part(b"").await.map_err(|error| self.interrupt(error))
            }
            hold => {
                self.hold = hold;
                Ok(())
            }
        }
    }

    /// From the first commit on the lease is renewed while the handler runs.
    fn lease(&mut self) {
        if !matches!(self.hold, Hold::Leased(_)) {
            self.hold = Hold::Leased(Lease::renew(&self.claim, self.token));
        }
    }

    /// Appends a line outside any transaction.
    async fn record(&mut self, line: &[u8]) -> Result<(), Error> {
        self.check()?;
        self.try_record(line).await.map_err(|error| self.interrupt(error))
    }

    async fn try_record(&mut self, line: &[u8]) -> Result<(), Error> {
        let idempotency = self.claim.idempotency.clone();
        let connection = idempotency.connection().await?;
        let (claim, token) = (self.claim.clone(), self.token);
        let record =
            || claim.about_key(&idempotency.statements().record).bind(token).bind(claim.lease.as_secs_f64()).bind(line);
        match idempotency.execute(connection, record).await {
            Ok(1) => Ok(()),
            Ok(_) => Err(self.fail(Broken::Lost)),
            Err(error) if is_lost(&error) => Err(self.fail(Broken::Unknown)),
            Err(error) => Err(self.claim.idempotency.not_executed(error)),
        }
    }

    /// Stores the response, or with `reason` that the effects are not known. Repeating it is harmless, so a lost acknowledgement is answered with a repetition, and the first
    /// try may do without the pool's checks.
    async fn complete(&self, stored: &StoredResponse, reason: Option<&str>) -> Result<bool, Error> {
        let idempotency = &self.claim.idempotency;
        let mut tried = self.complete_on(idempotency.connection_to_repeat_on().await, stored, reason).await;
        for pause in &RESOLVE_PAUSES {
            if !matches!(tried, Err(Error::Unavailable { .. })) {
                return tried;
            }
            sleep(*pause).await;
            tried = self.complete_on(idempotency.connection().await, stored, reason).await;
        }
        match tried {
            Err(error @ Error::Unavailable { .. }) => {
                tracing::warn!(handler = self.claim.handler, %error, "the outcome of a multi-step operation could not be stored");
                Err(idempotency.outcome_unknown())
            }
            completed => completed,
        }
    }

    async fn complete_on(
        &self,
        connection: Result<PoolConnection<Postgres>, Error>,
        stored: &StoredResponse,
        reason: Option<&str>,
    ) -> Result<bool, Error> {
        let idempotency = &self.claim.idempotency;
        let complete = || {
            self.claim
                .about_key(&idempotency.statements().complete_steps)
                .bind(self.token)
                .bind(self.claim.ttl.as_secs_f64())
                .bind(stored.status.cast_signed())
                .bind(&stored.headers)
                .bind(&*stored.body)
                .bind(reason)
        };
        let completed = idempotency
            .execute(connection?, complete)
            .await
            .map_err(|error| self.claim.idempotency.not_executed(error))?;
        Ok(completed == 1)
    }

    /// Gives the lease back: the next attempt resumes now. What is recorded stays.
    async fn give_back(&self) -> sqlx::Result<()> {
        let idempotency = &self.claim.idempotency;
        let Ok(connection) = idempotency.connection().await else {
            // The lease runs out by itself.
            return Ok(());
        };
        let give_back = || self.claim.about_key(&idempotency.statements().give_back).bind(self.token);
        idempotency.execute(connection, give_back).await.map(drop)
    }
}

impl fmt::Debug for Operation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Operation")
            .field("key", &self.claim.key)
            .field("position", &self.position)
            .finish_non_exhaustive()
    }
}
