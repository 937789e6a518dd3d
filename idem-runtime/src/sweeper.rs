//! Keys are remembered for their retention and no longer: what has expired is absent at once, and deleted soon after.

use sqlx::SqlStr;

use crate::background::{AsyncRound, Background, Round};
use crate::error::Error;
use crate::idempotency::Idempotency;

/// A task that deletes what has expired, started by [`Idempotency::sweeper`]. Dropping the handle leaves it running.
#[derive(Debug)]
pub struct Sweeper(Background);

impl Idempotency {
    /// Starts the sweeper. Any number of nodes may run one: they skip each other's rows.
    ///
    /// It deletes in batches of [`sweep_batch`](crate::Builder::sweep_batch) rows, one statement and one connection at a
    /// time, until nothing expired is left; then it rests for the [`sweep_interval`](crate::Builder::sweep_interval), give
    /// or take a quarter so that nodes do not march in step. An error is logged, and the next round tries again.
    ///
    /// # Panics
    /// Outside a Tokio runtime.
    #[must_use = "the handle stops the sweeper and tells what it has done"]
    pub fn sweeper(&self) -> Sweeper {
        Sweeper(Background::spawn("sweeper", self.settings().sweep_interval, Sweep(self.clone())))
    }

    /// Deletes what has expired, in batches, and returns how many rows that were.
    ///
    /// # Errors
    /// [`Error::Unavailable`] without a connection, [`Error::Database`] when the statement fails. Batches before it stay
    /// deleted.
    pub async fn sweep(&self) -> Result<u64, Error> {
        let mut sweep = Sweep(self.clone());
        let mut total = 0;
        loop {
            match sweep.round().await? {
                Round::More(swept) => total += swept,
                Round::Done(swept) => return Ok(total + swept),
            }
        }
    }

    async fn sweep_batch(&self, statement: &SqlStr) -> Result<u64, Error> {
        let settings = self.settings();
        let connection = self.connection().await?;
        let batch = || self.query(statement).bind(i64::from(settings.sweep_batch));
        let swept = self.execute(connection, batch).await.map_err(|error| self.not_executed(error))?;
        #[cfg(feature = "metrics")]
        metrics::counter!("idem_swept_total").increment(swept);
        Ok(swept)
    }
}

impl Sweeper {
    /// How many rows it has deleted so far.
    #[must_use]
    pub fn swept(&self) -> u64 {
        self.0.total()
    }

    /// Stops after the batch at hand and returns how many rows were deleted in all.
    pub async fn stop(self) -> u64 {
        self.0.stop().await
    }
}

struct Sweep(Idempotency);

impl AsyncRound for Sweep {
    /// One batch of keys and one of delivered messages.
    async fn round(&mut self) -> Result<Round, Error> {
        let keys = self.0.sweep_batch(&self.0.statements().sweep).await?;
        let messages = self.0.sweep_batch(&self.0.outbox_statements().sweep).await?;
        let full = u64::from(self.0.settings().sweep_batch);
        let swept = keys + messages;
        Ok(if keys == full || messages == full { Round::More(swept) } else { Round::Done(swept) })
    }
}
