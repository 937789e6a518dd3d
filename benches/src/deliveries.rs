//! What is measured of a system that delivers what a transaction has written: ours and a peer's, in the same way.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use crate::Result;
use crate::load::CLIENTS;
use crate::measure::quantile;

/// How many deliveries a system may have under way at once.
pub const LIMIT: u32 = 50;

/// What a transaction does for each of [`CLIENTS`]: it writes an order, sends a message about it, and commits.
pub trait Producer: Clone + Send + 'static {
    /// Returns as soon as the commit is known.
    fn order(&self, number: i64) -> impl Future<Output = Result<()>> + Send;
}

/// How many messages, and for how long.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    /// Messages that wait when the drain begins.
    pub backlog: u64,
    /// Messages that are picked up one by one.
    pub picked_up: u64,
    /// How long orders come as fast as they can.
    pub crowded: Duration,
    /// How long orders come at [`RATE`].
    pub steady: Duration,
}

/// Orders a second of a steady load.
pub const RATE: u32 = 500;

impl Size {
    /// For a number that means something, or for a smoke test.
    #[must_use]
    pub fn of(quick: bool) -> Self {
        let (backlog, picked_up, crowded, steady) = if quick { (200, 20, 1, 2) } else { (20_000, 500, 10, 60) };
        Self { backlog, picked_up, crowded: Duration::from_secs(crowded), steady: Duration::from_secs(steady) }
    }
}

/// What a receiver saw.
#[derive(Debug, Clone, Default)]
pub struct Receiver {
    count: Arc<AtomicU64>,
    last: Arc<Mutex<Option<(i64, Instant)>>>,
}

impl Receiver {
    /// A message has arrived.
    pub async fn receive(&self, number: i64) {
        let now = Instant::now();
        *self.last.lock().await = Some((number, now));
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// How many have arrived.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Waits until so many have arrived.
    ///
    /// # Errors
    /// After a minute.
    pub async fn until(&self, count: u64) -> Result<()> {
        let begin = Instant::now();
        while self.count() < count {
            if begin.elapsed() > Duration::from_secs(60) {
                return Err(format!("{} of {count} messages have arrived in a minute", self.count()).into());
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }
}

/// From commit to pick-up.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct PickUp {
    /// Half of the messages wait no longer, in milliseconds.
    pub p50: f64,
    /// All but one in a hundred.
    pub p99: f64,
}

/// Sends messages one by one, with pauses in which everybody falls asleep.
///
/// # Errors
/// If one does not arrive.
pub async fn pick_up(producer: &impl Producer, receiver: &Receiver, count: u64) -> Result<PickUp> {
    let mut waited = Vec::new();
    for number in 0..count {
        let before = receiver.count();
        producer.order(i64::MAX - number.cast_signed()).await?;
        let committed = Instant::now();
        receiver.until(before + 1).await?;
        let last = *receiver.last.lock().await;
        let arrived = last.ok_or("a message must have arrived")?.1;
        waited.push(arrived.saturating_duration_since(committed).as_secs_f64() * 1_000.0);
        tokio::time::sleep(Duration::from_millis(20 + number % 60)).await;
    }
    Ok(PickUp { p50: quantile(&waited, 0.5), p99: quantile(&waited, 0.99) })
}

/// What [`CLIENTS`] order in `time`, as fast as they can. How many orders that were.
///
/// # Errors
/// If one fails.
pub async fn order_as_fast_as_possible(producer: &impl Producer, time: Duration) -> Result<u64> {
    let begin = Instant::now();
    let numbers = Arc::new(AtomicU64::new(1 << 40));
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let (producer, numbers) = (producer.clone(), Arc::clone(&numbers));
        clients.spawn(async move {
            let mut made = 0;
            while begin.elapsed() < time {
                producer.order(numbers.fetch_add(1, Ordering::Relaxed).cast_signed()).await?;
                made += 1;
            }
            Ok::<u64, crate::Error>(made)
        });
    }
    let mut made = 0;
    while let Some(client) = clients.join_next().await {
        made += client??;
    }
    Ok(made)
}

/// Orders at [`RATE`] for `time`, and asks once a second how many rows are dead. The most there were.
///
/// # Errors
/// If an order fails.
pub async fn order_steadily(
    producer: &impl Producer,
    time: Duration,
    mut dead_rows: impl AsyncFnMut() -> Result<i64>,
) -> Result<i64> {
    let (mut clock, mut orders, mut most) = (tokio::time::interval(Duration::from_secs(1) / RATE), JoinSet::new(), 0);
    for number in 0..time.as_secs() * u64::from(RATE) {
        clock.tick().await;
        let producer = producer.clone();
        orders.spawn(async move { producer.order((1 << 50) + number.cast_signed()).await });
        while let Some(ordered) = orders.try_join_next() {
            ordered??;
        }
        if number % u64::from(RATE) == 0 {
            most = dead_rows().await?.max(most);
        }
    }
    while let Some(ordered) = orders.join_next().await {
        ordered??;
    }
    Ok(most)
}

/// What a peer's program prints, and what we measure of ourselves.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Measured {
    /// Messages a second out of a backlog, until the last one is picked up.
    pub drained: f64,
    /// Transactions for one of these messages.
    pub commits: f64,
    /// Bytes of the write-ahead log for one of these messages.
    pub wal_bytes: f64,
    /// From commit to pick-up.
    pub pick_up: PickUp,
    /// Orders a second whose messages were delivered meanwhile.
    pub ordered: f64,
    /// How many of these had not been delivered when the last one was made.
    pub behind: u64,
    /// The most dead rows under a steady load, in all tables of the system.
    pub dead_rows: i64,
}
