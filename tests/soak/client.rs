//! Clients that retry as the published contract says, and are no better than clients are: they hang up, send twice, go
//! away, and ask again long after they were answered.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout};

use crate::arguments::{Arguments, Sabotage};
use crate::fleet::Fleet;
use crate::http::{self, Answer};
use crate::ledger::{Ending, Entry, Kind, Ledger};

/// How long a client waits for an answer before it hangs up.
const TIMEOUT: Duration = Duration::from_secs(10);

/// How long a client tries before its key counts as stuck.
const PATIENCE: Duration = Duration::from_secs(180);

/// How many clients finish what others have abandoned.
const FINISHERS: usize = 16;

/// Starts all clients. They begin no new operation once it is `stopped`, and finish the last one.
pub(crate) fn start(
    arguments: &Arguments,
    fleet: &Arc<Fleet>,
    ledger: &Arc<Ledger>,
    stopped: &watch::Receiver<bool>,
) -> Vec<JoinHandle<()>> {
    let clients = (0..arguments.clients).map(|number| {
        let mut client = Client::new(arguments, number, fleet, ledger);
        let stopped = stopped.clone();
        tokio::spawn(async move {
            while !*stopped.borrow() {
                client.operate().await;
            }
        })
    });
    clients.collect()
}

/// Asks for every abandoned operation until it is answered.
pub(crate) async fn finish_abandoned(arguments: &Arguments, fleet: &Arc<Fleet>, ledger: &Arc<Ledger>) {
    let abandoned = ledger.abandoned();
    let mut finishers = JoinSet::new();
    for (number, share) in abandoned.chunks(abandoned.len().div_ceil(FINISHERS).max(1)).enumerate() {
        let mut client = Client::new(arguments, arguments.clients + number, fleet, ledger);
        let share = share.to_vec();
        finishers.spawn(async move {
            for operation in share {
                client.pursue(operation, None).await;
            }
        });
    }
    finishers.join_all().await;
}

struct Client {
    random: fastrand::Rng,
    fleet: Arc<Fleet>,
    ledger: Arc<Ledger>,
    two_keys: bool,
}

impl Client {
    fn new(arguments: &Arguments, number: usize, fleet: &Arc<Fleet>, ledger: &Arc<Ledger>) -> Self {
        Self {
            random: fastrand::Rng::with_seed(arguments.seed.wrapping_mul(31).wrapping_add(number as u64)),
            fleet: Arc::clone(fleet),
            ledger: Arc::clone(ledger),
            two_keys: arguments.sabotage == Some(Sabotage::TwoKeys),
        }
    }

    fn chance(&mut self, percent: u8) -> bool {
        self.random.u8(..100) < percent
    }

    /// One operation from its beginning to its end.
    async fn operate(&mut self) {
        let kind = Kind::ALL[[0, 0, 0, 1, 2, 3, 3, 3][self.random.usize(..8)]];
        let ending = if self.chance(10) { Ending::Refusal } else { Ending::Success };
        let key = format!("{:032x}", self.random.u128(..));
        let operation = self.ledger.begin(kind, ending, key);
        let attempts = if self.chance(4) { Some(self.random.u32(1..3)) } else { None };
        let answered = self.pursue(operation, attempts).await;
        if answered && self.two_keys && self.chance(10) {
            let mut entry = self.ledger.entry(operation);
            entry.key.push_str("-again");
            let _ = self.send(&entry, TIMEOUT).await;
        }
        // Long after.
        while answered && self.chance(15) {
            let entry = self.ledger.entry(operation);
            if let Some(answer) = self.attempt(&entry).await.filter(is_final) {
                self.ledger.answered(operation, answer);
            }
        }
    }

    /// Asks until there is a final answer, or for so many attempts.
    async fn pursue(&mut self, operation: u64, attempts: Option<u32>) -> bool {
        let entry = self.ledger.entry(operation);
        let begin = Instant::now();
        let mut made = 0;
        loop {
            let answer = if self.chance(5) { self.attempt_twice(&entry).await } else { self.attempt(&entry).await };
            made += 1;
            let pause = match answer {
                Some(answer) if is_final(&answer) => {
                    self.ledger.answered(operation, answer);
                    let longest = &mut self.ledger.tally().longest;
                    *longest = begin.elapsed().max(*longest);
                    return true;
                }
                Some(answer) => retry_after(&answer),
                None => None,
            };
            if attempts == Some(made) {
                self.ledger.abandon(operation);
                return false;
            }
            if begin.elapsed() > PATIENCE {
                self.ledger.give_up(operation, begin.elapsed());
                return false;
            }
            sleep(self.jittered(pause, made)).await;
        }
    }

    /// What the server asks for and a little more, or full jitter.
    fn jittered(&mut self, pause: Option<Duration>, made: u32) -> Duration {
        let longest = Duration::from_millis(50 << made.min(6));
        let jitter = longest.mul_f64(self.random.f64());
        pause.map_or(jitter, |pause| pause + jitter / 4)
    }

    /// A double click: both go to some server at the same time, and the first final answer counts. Both are compared.
    async fn attempt_twice(&mut self, entry: &Entry) -> Option<Answer> {
        let (mut one, mut other) = (self.fork(), self.fork());
        let (first, second) = tokio::join!(one.attempt(entry), other.attempt(entry));
        let mut answers = [first, second].into_iter().flatten();
        match (answers.next(), answers.next()) {
            (Some(first), Some(second)) if is_final(&first) && is_final(&second) => {
                self.ledger.answered(entry.order.operation, second);
                Some(first)
            }
            (Some(first), second) => Some(if is_final(&first) { first } else { second.unwrap_or(first) }),
            (None, _) => None,
        }
    }

    fn fork(&mut self) -> Self {
        Self {
            random: self.random.fork(),
            fleet: Arc::clone(&self.fleet),
            ledger: Arc::clone(&self.ledger),
            two_keys: self.two_keys,
        }
    }

    async fn attempt(&mut self, entry: &Entry) -> Option<Answer> {
        let hangs_up = self.chance(4);
        let limit = if hangs_up { Duration::from_micros(self.random.u64(..30_000)) } else { TIMEOUT };
        let sent = self.send(entry, limit).await;
        let mut tally = self.ledger.tally();
        tally.requests += 1;
        match sent {
            Ok(Ok(answer)) => {
                tally.replays += u64::from(answer.headers.contains_key("idempotency-replayed"));
                *tally.statuses.entry(answer.status).or_default() += 1;
                Some(answer)
            }
            Err(_) if hangs_up => {
                tally.hang_ups += 1;
                None
            }
            _ => {
                tally.unanswered += 1;
                None
            }
        }
    }

    async fn send(
        &mut self,
        entry: &Entry,
        limit: Duration,
    ) -> Result<io::Result<Answer>, tokio::time::error::Elapsed> {
        let fleet = Arc::clone(&self.fleet);
        let socket = fleet.address(self.random.usize(..fleet.len()));
        // As HTTP/1.1 clients do, with both spellings of a key.
        let quoted = format!("\"{}\"", entry.key);
        let key = if self.chance(50) { &entry.key } else { &quoted };
        let body = serde_json::to_vec(&entry.order).expect("JSON");
        timeout(limit, http::post(socket, entry.kind.path(), &[("idempotency-key", key)], body)).await
    }
}

/// Whether the contract leaves nothing to retry.
fn is_final(answer: &Answer) -> bool {
    match answer.status {
        408 | 425 | 429 | 500.. => false,
        409 => retry_after(answer).is_none(),
        _ => true,
    }
}

fn retry_after(answer: &Answer) -> Option<Duration> {
    answer.headers.get("retry-after")?.to_str().ok()?.parse().ok().map(Duration::from_secs)
}
