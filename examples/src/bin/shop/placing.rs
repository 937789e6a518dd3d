//! Two ways of placing orders over a bad network.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use idem_client::{Client, FileJournal, Key};
use idem_examples::Error;
use serde_json::json;

use crate::progress::Bar;
use crate::shop::TOKEN;

/// Long enough for the shop to answer, short enough that a thousand time-outs do not bore.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(1);

/// How many orders are placed at the same time.
const LANES: usize = 24;

/// What the client noticed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Notes {
    /// Orders that the client gave up, and that were sent again later with the same key.
    pub(crate) reconciled: u64,
    /// Orders of which the client does not know what became.
    pub(crate) given_up: u64,
    pub(crate) left_on_journal: u64,
}

fn order(number: u32) -> serde_json::Value {
    json!({ "product": format!("gift-{number}"), "quantity": 1, "card": "tok_visa" })
}

/// The orders that are still to be placed; the lanes take them one by one.
#[derive(Default)]
struct Queue(Mutex<VecDeque<u32>>);

impl Queue {
    fn take(&self) -> Option<u32> {
        self.0.lock().expect("no holder panics").pop_front()
    }

    fn put(&self, order: u32) {
        self.0.lock().expect("no holder panics").push_back(order);
    }

    fn len(&self) -> u64 {
        self.0.lock().expect("no holder panics").len() as u64
    }
}

/// Where the journal lies while the program runs. A real client keeps its journal where it survives a restart.
struct Directory(PathBuf);

impl Directory {
    fn new() -> std::io::Result<Self> {
        let path = std::env::temp_dir().join(format!("idem-shop-{}", std::process::id()));
        std::fs::create_dir_all(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// With idem-client: one key an order, and what was given up is sent again with the same key, until it is answered.
///
/// More than half of the attempts fail here, so the client is given more attempts and a larger retry budget than its
/// defaults, which are made for networks that work most of the time.
pub(crate) async fn with_idem_client(url: &str, orders: u32, progress: &Bar) -> Result<Notes, Error> {
    let directory = Directory::new()?;
    let client = Client::builder()
        .attempts(6)
        .attempt_timeout(ATTEMPT_TIMEOUT)
        .retry_budget(5.0, 100)
        .breaker(1_000, Duration::from_secs(1))
        .journal(FileJournal::open(directory.0.join("orders.journal"))?)
        .build()?;
    let mut notes = Notes::default();
    let mut waiting = Queue(Mutex::new((1..=orders).collect()));
    while waiting.len() > 0 {
        let unanswered = Queue::default();
        let place = async |number: u32| {
            let request = client.post(url).key(Key::of("place-order", &number)).bearer_auth(TOKEN);
            match request.json(&order(number)).send().await {
                Ok(answer) if answer.status() == 201 => progress.one_done(),
                // The shop failed; the key still stands for this order.
                Ok(answer) if answer.status().is_server_error() => unanswered.put(number),
                Ok(answer) => return Err(Error::from(format!("order {number} was answered {}", answer.status()))),
                Err(idem_client::Error::GaveUp(_)) => unanswered.put(number),
                Err(error) => return Err(error.into()),
            }
            Ok(())
        };
        in_lanes(&waiting, &place).await?;
        notes.reconciled += unanswered.len();
        waiting = unanswered;
    }
    notes.left_on_journal = client.pending().await?.len() as u64;
    Ok(notes)
}

/// The loop that everybody writes first: try, and if it fails, try again. Each attempt is a request of its own.
pub(crate) async fn naively(url: &str, orders: u32, progress: &Bar) -> Result<Notes, Error> {
    let client = reqwest::Client::builder().timeout(ATTEMPT_TIMEOUT).build()?;
    let given_up = AtomicU64::new(0);
    let waiting = Queue(Mutex::new((1..=orders).collect()));
    let place = async |number: u32| {
        for _ in 0..4 {
            let request = client.post(url).header("idempotency-key", Key::random().as_str()).bearer_auth(TOKEN);
            if request.json(&order(number)).send().await.is_ok_and(|answer| answer.status() == 201) {
                progress.one_done();
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        given_up.fetch_add(1, Ordering::Relaxed);
        Ok(())
    };
    in_lanes(&waiting, &place).await?;
    Ok(Notes { given_up: given_up.into_inner(), ..Notes::default() })
}

async fn in_lanes(waiting: &Queue, place: &impl AsyncFn(u32) -> Result<(), Error>) -> Result<(), Error> {
    let lane = async || {
        while let Some(number) = waiting.take() {
            place(number).await?;
        }
        Ok::<(), Error>(())
    };
    let lanes: Vec<_> = (0..LANES).map(|_| lane()).collect();
    futures_util::future::try_join_all(lanes).await?;
    Ok(())
}
