//! Message consumers, gRPC methods and jobs: a function that is called, not routed. The message's id and the effects are
//! one commit (the inbox pattern); a redelivery gets the recorded result.

use std::panic::AssertUnwindSafe;

use bytes::Bytes;
use futures_util::FutureExt;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::Instant;
use tracing::Instrument;

use super::claim::{Claim, Entered};
use super::outcome::StoredResponse;
use super::unit::{Acquired, Concluded, Held, Unit, Verdict, Worked};
use crate::attribute::{FromError, Recorded};
use crate::call::Request;
use crate::error::Error;
use crate::operation::Operation;
use crate::postgres::transaction::Tx;
use crate::recorded;
use crate::telemetry::Outcome;

impl Request {
    /// Calls the function in one transaction with the claim, or answers for it.
    ///
    /// # Errors
    /// The function's own, and as `E::from` those of the claim.
    pub async fn call_transaction<T, E>(self, function: impl AsyncFnOnce(&mut Tx) -> Result<T, E>) -> Result<T, E>
    where
        T: Recorded,
        E: FromError,
    {
        self.call_unit(function).await
    }

    /// Calls the function over its steps, or answers for it.
    ///
    /// # Errors
    /// The function's own, and as `E::from` those of the claim.
    pub async fn call_operation<T, E>(self, function: impl AsyncFnOnce(&mut Operation) -> Result<T, E>) -> Result<T, E>
    where
        T: Recorded,
        E: FromError,
    {
        self.call_unit(function).await
    }

    async fn call_unit<U, T, E>(self, function: impl AsyncFnOnce(&mut U) -> Result<T, E>) -> Result<T, E>
    where
        U: Unit,
        T: Serialize + DeserializeOwned,
        E: From<Error>,
    {
        let telemetry = self.telemetry();
        let called = async {
            let claim = self.claim(false, U::OF_STEPS)?;
            claim.call(function).await
        };
        let called = AssertUnwindSafe(called.instrument(telemetry.span())).catch_unwind().await;
        match called {
            Ok(Ok((result, outcome))) => {
                telemetry.record(Ok(outcome));
                result
            }
            Ok(Err(error)) => {
                telemetry.record(Err(&error));
                Err(error.into())
            }
            Err(panic) => {
                telemetry.finish_panicked();
                std::panic::resume_unwind(panic)
            }
        }
    }
}

impl Claim {
    /// The function's own result, or an error of the claim's.
    async fn call<U, T, E>(
        &self,
        function: impl AsyncFnOnce(&mut U) -> Result<T, E>,
    ) -> Result<(Result<T, E>, Outcome), Error>
    where
        U: Unit,
        T: Serialize + DeserializeOwned,
    {
        let deadline = self.wait.map(|limit| Instant::now() + limit);
        let running = self.idempotency.count_in();
        let ticket = match self.enter(deadline).await? {
            Entered::Ours(ticket) => ticket,
            Entered::Stored(stored) => return replay(&stored),
        };
        if let Some(stored) = self.read_completed().await? {
            let replayed = replay(&stored);
            if let Some(ticket) = ticket {
                ticket.end(stored);
            }
            return replayed;
        }
        let mut held = match Held::<U>::acquire(self.clone(), ticket, deadline, running, false).await? {
            Acquired::Held(held) => held,
            Acquired::Stored(stored) => return replay(&stored),
        };
        let worked = AssertUnwindSafe(function(held.unit())).catch_unwind().await.map(judge);
        let failed = matches!(&worked, Ok(Worked { result: Err(_), .. }));
        let own_error = |worked: Result<Worked<Result<T, E>>, _>| worked;
        match held.conclude(own_error(worked)).await? {
            Concluded::Own(result) => Ok((result, if failed { Outcome::Released } else { Outcome::Claimed })),
            Concluded::Stored(stored) => replay(&stored),
        }
    }
}

/// What is recorded must come back as it was: a value that does not is an error now, and not at every redelivery.
fn judge<T: Serialize + DeserializeOwned, E>(result: Result<T, E>) -> Worked<Result<T, E>> {
    let verdict = match &result {
        Ok(value) => recorded::encode(value)
            .map(|body| Verdict::Commit(StoredResponse { status: 200, headers: Vec::new(), body: Bytes::from(body) })),
        Err(_) => Ok(Verdict::Release),
    };
    Worked { result, verdict }
}

fn replay<T: DeserializeOwned, E>(stored: &StoredResponse) -> Result<(Result<T, E>, Outcome), Error> {
    if stored.is_effects_unknown() {
        return Err(Error::EffectsUnknown);
    }
    let value = serde_json::from_slice(&stored.body).map_err(Error::Json)?;
    Ok((Ok(value), Outcome::Replayed))
}
