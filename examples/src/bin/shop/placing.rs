//! Two ways of placing orders over a bad network.

use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use idem_client::{Builder, Client, FileJournal, Key};
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
    /// Orders whose first send ended with the shop's answer.
    pub(crate) answered: u64,
    /// The longest that one of those took.
    pub(crate) slowest: Duration,
    /// Orders that the client gave up, and that were sent again later with the same key.
    pub(crate) reconciled: u64,
    /// Orders of which the client does not know what became.
    pub(crate) given_up: u64,
    pub(crate) left_on_journal: u64,
    /// Of a batch that was sent at once, how many were given up: with this network's limits, and with the defaults.
    pub(crate) batch_given_up: u64,
    pub(crate) batch_given_up_by_default: u64,
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

/// More than half of the attempts fail here, so the client is given more attempts, nearer to each other, and a larger
/// retry budget than its defaults, which are made for networks that work most of the time. The deadline is the default's.
fn for_this_network() -> Builder {
    Client::builder()
        .attempts(16)
        .back_off(Duration::from_millis(100), Duration::from_secs(1))
        .attempt_timeout(ATTEMPT_TIMEOUT)
        .retry_budget(5.0, 100)
        .breaker(1_000, Duration::from_secs(1))
}

/// With idem-client: one key an order, and what was given up is sent again with the same key, until it is answered.
/// Then two batches at once, with the numbers after the orders'.
pub(crate) async fn with_idem_client(url: &str, orders: u32, batch: u32, progress: &Bar) -> Result<Notes, Error> {
    let directory = Directory::new()?;
    let journal = |name| FileJournal::open(directory.0.join(name));
    let client = for_this_network().journal(journal("orders.journal")?).build()?;
    let notes = Mutex::new(Notes::default());
    let mut waiting: Vec<u32> = (1..=orders).collect();
    for round in 0.. {
        if waiting.is_empty() {
            break;
        }
        let unanswered = Queue::default();
        let queue = Queue(Mutex::new(waiting.into()));
        let place = async |number: u32| {
            let took = place(&client, url, number).await?;
            let Some(took) = took else {
                unanswered.put(number);
                return Ok(());
            };
            progress.one_done();
            if round == 0 {
                let mut notes = notes.lock().expect("no holder panics");
                notes.answered += 1;
                notes.slowest = notes.slowest.max(took);
            }
            Ok(())
        };
        in_lanes(&queue, &place).await?;
        waiting = unanswered.0.into_inner().expect("no holder panics").into();
        notes.lock().expect("no holder panics").reconciled += waiting.len() as u64;
    }
    let mut notes = notes.into_inner().expect("no holder panics");
    notes.left_on_journal = client.pending().await?.len() as u64;
    let batches =
        [(for_this_network(), orders, "first.journal"), (Client::builder(), orders + batch, "second.journal")];
    let mut given_up = Vec::new();
    for (builder, after, name) in batches {
        let at_once = builder.journal(journal(name)?).build()?;
        given_up.push(at_once_and_reconciled(&at_once, url, after + 1..=after + batch).await?);
        notes.left_on_journal += at_once.pending().await?.len() as u64;
    }
    (notes.batch_given_up, notes.batch_given_up_by_default) = (given_up[0], given_up[1]);
    Ok(notes)
}

/// Places one order; how long it took, or nothing if the client gave up and it must be asked about.
async fn place(client: &Client, url: &str, number: u32) -> Result<Option<Duration>, Error> {
    let started = Instant::now();
    let request = client.post(url).key(Key::of("place-order", &number)).bearer_auth(TOKEN);
    match request.json(&order(number)).send().await {
        Ok(answer) if answer.status() == 201 => Ok(Some(started.elapsed())),
        // The shop failed; the key still stands for this order.
        Ok(answer) if answer.status().is_server_error() => Ok(None),
        Ok(answer) => Err(format!("order {number} was answered {}", answer.status()).into()),
        Err(idem_client::Error::GaveUp(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Sends all of them in the same moment; says how many were given up, after these have been sent again one by one.
async fn at_once_and_reconciled(client: &Client, url: &str, numbers: RangeInclusive<u32>) -> Result<u64, Error> {
    let sends = numbers.map(async |number| Ok::<_, Error>((number, place(client, url, number).await?)));
    let sent = futures_util::future::try_join_all(sends).await?;
    let given_up: Vec<u32> = sent.into_iter().filter(|(_, took)| took.is_none()).map(|(number, _)| number).collect();
    let patient = for_this_network().build()?;
    for number in &given_up {
        while place(&patient, url, *number).await?.is_none() {}
    }
    for record in client.pending().await? {
        client.strike_off(&record).await?;
    }
    Ok(given_up.len() as u64)
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
