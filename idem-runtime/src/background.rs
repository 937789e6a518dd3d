//! Sweeper, completer and relay are one kind of thing: rounds of work with pauses between them, until stopped.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::error::Error;

/// What a round leaves behind.
pub(crate) enum Round {
    /// There may be more: go on at once.
    More(u64),
    /// There was nothing more to do: rest.
    Done(u64),
}

/// A task of rounds. Dropping the handle leaves it running.
#[derive(Debug)]
pub(crate) struct Background {
    stop: watch::Sender<bool>,
    total: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

impl Background {
    /// Runs rounds, and between two of them rests for `interval`, give or take a quarter so that nodes do not march in
    /// step. An error is logged, and the next round tries again.
    pub(crate) fn spawn<F>(name: &'static str, interval: Duration, round: F) -> Self
    where
        F: AsyncRound + Send + 'static,
    {
        let (stop, stopped) = watch::channel(false);
        let total = Arc::new(AtomicU64::new(0));
        let task = tokio::spawn(run(name, interval, round, stopped, Arc::clone(&total)));
        Self { stop, total, task }
    }

    pub(crate) fn total(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }

    /// Stops after the round at hand.
    pub(crate) async fn stop(self) -> u64 {
        self.stop.send_replace(true);
        let _ = self.task.await;
        self.total.load(Ordering::Relaxed)
    }
}

/// One round of work.
pub(crate) trait AsyncRound {
    fn round(&mut self) -> impl Future<Output = Result<Round, Error>> + Send;
}

async fn run<F: AsyncRound>(
    name: &'static str,
    interval: Duration,
    mut work: F,
    mut stopped: watch::Receiver<bool>,
    total: Arc<AtomicU64>,
) {
    while !*stopped.borrow() {
        let more = match work.round().await {
            Ok(Round::More(count)) => {
                total.fetch_add(count, Ordering::Relaxed);
                true
            }
            Ok(Round::Done(count)) => {
                total.fetch_add(count, Ordering::Relaxed);
                false
            }
            Err(error) => {
                let source = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
                tracing::warn!(name, %error, source, "a round failed; the next one tries again");
                false
            }
        };
        if !more {
            pause(interval.mul_f64(0.75 + fastrand::f64() / 2.0), &mut stopped).await;
        }
    }
}

/// Ends early when the task is stopped; a dropped handle is no stop.
async fn pause(duration: Duration, stopped: &mut watch::Receiver<bool>) {
    let stop = async {
        if stopped.wait_for(|stopped| *stopped).await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    let _ = timeout(duration, stop).await;
}
