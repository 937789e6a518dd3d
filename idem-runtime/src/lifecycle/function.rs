//! Message consumers, gRPC methods and jobs: a function that is called, not routed. The message's id and the effects are
//! one commit (the inbox pattern); a redelivery gets the recorded result.

use std::panic::{AssertUnwindSafe, resume_unwind};

use bytes::Bytes;
use futures_util::FutureExt;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::Instant;
use tracing::Instrument;

use crate::attribute::{FromError, Recorded};
use crate::call::Request;
use crate::error::Error;
use crate::lifecycle::claim::{Claim, Entered, Standing, Unit};
use crate::lifecycle::completion::{Ended, Verdict};
use crate::lifecycle::outcome::StoredResponse;
use crate::operation::Operation;
use crate::postgres::transaction::Tx;
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
            let claim = self.claim(false)?;
            claim.call(function).await
        };
        let called = called.instrument(telemetry.span()).await;
        telemetry.finish(match &called {
            Ok((_, outcome)) => Ok(*outcome),
            Err(Failed::Claim(error)) => Err(error),
            Err(Failed::Function(_)) => Ok(Outcome::Released),
        });
        match called {
            Ok((value, _)) => Ok(value),
            Err(Failed::Claim(error)) => Err(error.into()),
            Err(Failed::Function(error)) => Err(error),
        }
    }
}

/// Whose error it is.
enum Failed<E> {
    Claim(Error),
    Function(E),
}

impl<E> From<Error> for Failed<E> {
    fn from(error: Error) -> Self {
        Self::Claim(error)
    }
}

impl Claim {
    async fn call<U, T, E>(&self, function: impl AsyncFnOnce(&mut U) -> Result<T, E>) -> Result<(T, Outcome), Failed<E>>
    where
        U: Unit,
        T: Serialize + DeserializeOwned,
    {
        let deadline = self.wait.map(|limit| Instant::now() + limit);
        let _running = self.idempotency.count_in();
        let ticket = match self.enter(deadline).await? {
            Entered::Ours(ticket) => ticket,
            Entered::Stored(stored) => return Ok((recorded(&stored)?, Outcome::Replayed)),
        };
        if let Some(stored) = self.recall().await? {
            return Ok((recorded(&stored)?, Outcome::Replayed));
        }
        let mut unit = match self.stand::<U>(deadline).await? {
            Standing::Claimed(unit) => unit,
            Standing::InFlight => return Err(self.idempotency.in_flight().into()),
            Standing::Completed(stored) => return Ok((recorded(&stored)?, Outcome::Replayed)),
        };
        let ticket = ticket.inspect(crate::lifecycle::in_flight::Ticket::run);
        let value = match AssertUnwindSafe(function(&mut unit)).catch_unwind().await {
            Ok(Ok(value)) => value,
            Ok(Err(error)) => {
                unit.abandon().await;
                return Err(Failed::Function(error));
            }
            Err(panic) => {
                unit.abandon().await;
                drop(ticket);
                resume_unwind(panic)
            }
        };
        let body = match serde_json::to_vec(&value) {
            Ok(body) => Bytes::from(body),
            Err(error) => {
                unit.abandon().await;
                return Err(Error::Json(error).into());
            }
        };
        let stored = StoredResponse { status: 200, headers: Vec::new(), body };
        match unit.end(self, Verdict::Commit(stored), ticket).await? {
            Ended::Own => Ok((value, Outcome::Claimed)),
            Ended::Stored(stored) => Ok((recorded(&stored)?, Outcome::Replayed)),
        }
    }
}

fn recorded<T: DeserializeOwned>(stored: &StoredResponse) -> Result<T, Error> {
    serde_json::from_slice(&stored.body).map_err(Error::Json)
}
