//! Keys are remembered for their retention and no longer: what has expired is absent at once, and deleted soon after.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::error::Error;
use crate::idempotency::Idempotency;

/// A task that deletes expired rows, started by [`Idempotency::sweeper`]. Dropping the handle leaves it running.
pub struct Sweeper {
    stop: watch::Sender<bool>,
    swept: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

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
        let (stop, stopped) = watch::channel(false);
        let swept = Arc::new(AtomicU64::new(0));
        let task = tokio::spawn(run(self.clone(), stopped, Arc::clone(&swept)));
        Sweeper { stop, swept, task }
    }

    /// Deletes what has expired, in batches, and returns how many rows that were.
    ///
    /// # Errors
    /// [`Error::Unavailable`] without a connection, [`Error::Database`] when the statement fails. Batches before it stay
    /// deleted.
    pub async fn sweep(&self) -> Result<u64, Error> {
        let mut total = 0;
        loop {
            let swept = self.sweep_batch().await?;
            total += swept;
            if swept < u64::from(self.settings().sweep_batch) {
                return Ok(total);
            }
        }
    }

    async fn sweep_batch(&self) -> Result<u64, Error> {
        let mut connection = self.connection().await?;
        let batch = sqlx::query(self.statements().sweep.clone())
            .bind(i64::from(self.settings().sweep_batch))
            .persistent(self.settings().prepared_statements);
        let swept = batch.execute(&mut *connection).await.map_err(Error::Database)?.rows_affected();
        #[cfg(feature = "metrics")]
        metrics::counter!("idem_swept_total").increment(swept);
        Ok(swept)
    }
}

impl Sweeper {
    /// How many rows it has deleted so far.
    #[must_use]
    pub fn swept(&self) -> u64 {
        self.swept.load(Ordering::Relaxed)
    }

    /// Stops after the batch at hand and returns how many rows were deleted in all.
    pub async fn stop(self) -> u64 {
        self.stop.send_replace(true);
        let _ = self.task.await;
        self.swept.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for Sweeper {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Sweeper").field("swept", &self.swept()).finish_non_exhaustive()
    }
}

async fn run(idempotency: Idempotency, mut stopped: watch::Receiver<bool>, swept: Arc<AtomicU64>) {
    let interval = idempotency.settings().sweep_interval;
    let full = u64::from(idempotency.settings().sweep_batch);
    while !*stopped.borrow() {
        let batch = idempotency.sweep_batch().await;
        match &batch {
            Ok(rows) => {
                swept.fetch_add(*rows, Ordering::Relaxed);
                tracing::debug!(rows, "swept expired idempotency keys");
            }
            Err(error) => tracing::warn!(%error, "sweeping failed; the next round tries again"),
        }
        if !matches!(batch, Ok(rows) if rows == full) {
            pause(jittered(interval), &mut stopped).await;
        }
    }
}

/// Ends early when the sweeper is stopped; a dropped handle is no stop.
async fn pause(duration: Duration, stopped: &mut watch::Receiver<bool>) {
    let stop = async {
        if stopped.wait_for(|stopped| *stopped).await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    let _ = timeout(duration, stop).await;
}

fn jittered(interval: Duration) -> Duration {
    interval.mul_f64(0.75 + fastrand::f64() / 2.0)
}
