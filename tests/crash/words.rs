//! What a pooler, or a server that goes down, says about a statement of ours is no proof of what became of it.
//!
//! Every word of the product {`FATAL`, `ERROR`, `PANIC`} × codes, and every broken frame, in the place of the answer to each
//! statement with which the runtime begins, records and commits, of each kind of handler; the statement executed and
//! not. A client then retries with the same key. After each answer the database is asked: at most one effect, no answer
//! that is not true, nothing stored that contradicts the effect.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, Request};
use axum::{Extension, Router};
use futures_util::future::join_all;
use idem_testing::proxy::{Action, Fault, Place, Proxy, Severity, Word};
use idem_testing::{ExternalCalls, TestDatabase};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tower::ServiceExt;

use crate::handlers::{create_tables, process};

/// A way to be idempotent, and what one execution of it does.
#[derive(Clone, Copy)]
struct Kind {
    path: &'static str,
    body: &'static str,
    status: u16,
    /// Rows of all tables together.
    rows: i64,
    charges: usize,
    keyed: bool,
    /// A function's result comes back without a mark.
    marked: bool,
}

const ORDER: &str = r#"{"product": 1, "quantity": 2}"#;

const TRANSACTION: Kind =
    Kind { path: "/orders", body: ORDER, status: 201, rows: 1, charges: 0, keyed: true, marked: true };
const REFUSAL: Kind =
    Kind { path: "/orders", body: r#"{"product": 2, "quantity": 2}"#, status: 402, rows: 0, ..TRANSACTION };
const REFUSAL_AFTER_A_FAILED_STATEMENT: Kind =
    Kind { path: "/customers", body: r#""taken@example.org""#, status: 409, rows: 0, ..TRANSACTION };
const OPERATION: Kind = Kind { path: "/checkout", rows: 2, charges: 1, ..TRANSACTION };
const OPERATION_THAT_REFUSES: Kind = Kind { path: "/bookings", ..OPERATION };
const FUNCTION: Kind =
    Kind { path: "/deliveries", body: r#"{"id": "{key}", "amount": 7}"#, status: 200, marked: false, ..TRANSACTION };
const FUNCTION_IN_STEPS: Kind = Kind { path: "/deliveries-in-steps", rows: 2, ..FUNCTION };
const WITHOUT_A_KEY: Kind = Kind { path: "/guests", keyed: false, ..TRANSACTION };

#[tokio::test]
async fn one_transaction() {
    say_every_word_to(TRANSACTION, &["BEGIN", "AS asked_scope", "INSERT INTO \"idem\""]).await;
}

#[tokio::test]
async fn a_refusal() {
    say_every_word_to(REFUSAL, &["BEGIN", "ROLLBACK"]).await;
}

#[tokio::test]
async fn a_refusal_after_a_failed_statement() {
    say_every_word_to(REFUSAL_AFTER_A_FAILED_STATEMENT, &["BEGIN", "ROLLBACK"]).await;
}

#[tokio::test]
async fn an_operation() {
    say_every_word_to(OPERATION, &["BEGIN", "INSERT INTO \"idem\"", "UPDATE \"idem\"", "WITH fenced"]).await;
}

#[tokio::test]
async fn an_operation_whose_failed_parts_become_refusals() {
    say_every_word_to(OPERATION_THAT_REFUSES, &["BEGIN", "INSERT INTO \"idem\"", "UPDATE \"idem\"", "WITH fenced"])
        .await;
}

#[tokio::test]
async fn a_function() {
    say_every_word_to(FUNCTION, &["BEGIN", "INSERT INTO \"idem\""]).await;
}

#[tokio::test]
async fn a_function_in_steps() {
    say_every_word_to(FUNCTION_IN_STEPS, &["BEGIN", "UPDATE \"idem\"", "WITH fenced"]).await;
}

#[tokio::test]
async fn without_a_key() {
    say_every_word_to(WITHOUT_A_KEY, &["BEGIN", "COMMIT"]).await;
}

/// Where a word is said, and what is said.
#[derive(Clone, Copy)]
struct Cell {
    round_trip: u64,
    word: Word,
    executed: bool,
}

impl Cell {
    fn fault(self) -> Fault {
        let place = if self.executed { Place::Answer(self.round_trip) } else { Place::RoundTrip(self.round_trip) };
        Fault { place, action: Action::Answer(self.word) }
    }

    /// An error that only a rolled back transaction has, although the statement was executed: no server and no pooler
    /// says this, and no client could see through it.
    fn is_a_lie(self) -> bool {
        let refused = matches!(self.word, Word::Error { severity: Severity::Error, code } if code == REPLICA);
        self.executed && (refused || self.word == Word::ServerLost { code: REPLICA })
    }

    fn says_replica(self) -> bool {
        matches!(self.word, Word::Error { code, .. } | Word::ServerLost { code } if code == REPLICA)
    }
}

/// What a server that has become a replica says to a statement that writes.
const REPLICA: &str = "25006";

/// How many trials run at once: an operation that is left to its lease waits most of the time.
const LANES: usize = 8;

/// What is wrong, with the words at which it is.
type Findings = BTreeMap<(String, bool, String), BTreeSet<String>>;

async fn say_every_word_to(kind: Kind, expected: &[&str]) {
    let lanes = join_all((0..LANES).map(|_| Lane::open())).await;
    let places = lanes[0].places(kind).await;
    for statement in expected {
        assert!(places.iter().any(|(_, text)| text.contains(statement)), "no `{statement}` among {places:#?}");
    }
    let mut cells = Vec::new();
    for (round_trip, _) in &places {
        let words = Word::every().into_iter();
        cells.extend(
            words.flat_map(|word| [false, true].map(|executed| Cell { round_trip: *round_trip, word, executed })),
        );
    }
    let count = cells.len();
    let (cells, findings) = (Mutex::new(cells), Mutex::new(Findings::new()));
    let work = async |lane: &Lane| {
        loop {
            let Some(cell) = cells.lock().expect("no panic").pop() else { return };
            let (statement, found) = lane.trial(kind, cell).await;
            for finding in found {
                let place = (statement.clone(), cell.executed, finding);
                findings.lock().expect("no panic").entry(place).or_default().insert(cell.word.to_string());
            }
        }
    };
    join_all(lanes.iter().map(work)).await;
    let findings = findings.into_inner().expect("no panic");
    let failed: usize = findings.values().map(BTreeSet::len).sum();
    println!("{}: {count} cells at {} round trips, {failed} findings", kind.path, places.len());
    assert!(findings.is_empty(), "{}", Shown(&findings));
}

struct Shown<'a>(&'a Findings);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for ((statement, executed, finding), words) in self.0 {
            let executed = if *executed { "executed" } else { "not executed" };
            let words: Vec<_> = words.iter().map(String::as_str).collect();
            let statement: String = statement.chars().take(70).collect();
            writeln!(f, "✗ {statement} ({executed}): {finding}\n    {}", words.join(", "))?;
        }
        Ok(())
    }
}

/// A database with a proxy before it, in which one trial runs at a time.
struct Lane {
    proxy: Proxy,
    direct: PgPool,
    provider: ExternalCalls,
    /// A process that nothing happens to.
    other: Router,
    _database: TestDatabase,
}

#[derive(Debug)]
struct Reply {
    status: u16,
    headers: HeaderMap,
    body: Bytes,
}

impl Lane {
    async fn open() -> Self {
        let database = TestDatabase::create().await.expect("a database");
        let direct = database.pool_with(PgPoolOptions::new().max_connections(3));
        create_tables(&direct).await;
        let provider = ExternalCalls::new();
        let other = router(database.pool_with(PgPoolOptions::new().max_connections(2)), &provider);
        let proxy = Proxy::start(&database.url()).expect("a proxy");
        Self { proxy, direct, provider, other, _database: database }
    }

    /// The round trips in which a statement of the runtime's goes out, and what it says.
    async fn places(&self, kind: Kind) -> Vec<(u64, String)> {
        let mut places = Vec::new();
        for n in 1.. {
            // Nothing is struck: a stall of no time only names the place.
            let fault = Fault { place: Place::RoundTrip(n), action: Action::Stall(Duration::ZERO) };
            let (struck, _) = self.struck(kind, &format!("places-{n}"), fault).await;
            struck.pool.close().await;
            let Some(met) = struck.met else { return places };
            let statement = met;
            let ours = ["BEGIN", "COMMIT", "ROLLBACK", "\"idem\""].iter().any(|part| statement.contains(part));
            if ours {
                places.push((n, statement));
            }
        }
        unreachable!("a request ends")
    }

    /// A process that a fault happens to at its first request.
    async fn struck(&self, kind: Kind, key: &str, fault: Fault) -> (Struck, Reply) {
        let backends = Arc::new(Mutex::new(Vec::new()));
        let options = PgPoolOptions::new().max_connections(1).acquire_timeout(Duration::from_secs(10));
        let pool = self.proxy.pool_with(options.after_connect({
            let backends = Arc::clone(&backends);
            move |connection, _| {
                let backends = Arc::clone(&backends);
                Box::pin(async move {
                    let backend = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(connection).await?;
                    backends.lock().expect("no panic").push(backend);
                    Ok(())
                })
            }
        }));
        let app = router(pool.clone(), &self.provider);
        self.proxy.inject(fault);
        let reply = kind.send(&app, key).await;
        // What travels after the answer belongs to this request, and not to the next fault's count.
        for _ in 0..1_000 {
            if pool.num_idle() >= pool.size() as usize {
                break;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        self.proxy.disarm();
        let met = self.proxy.met().map(|met| met.statement);
        let backend = backends.lock().expect("no panic").first().copied();
        (Struck { pool, app, backend, met }, reply)
    }

    async fn rows(&self) -> i64 {
        let count = "SELECT (SELECT count(*) FROM orders) + (SELECT count(*) FROM payments) \
                     + (SELECT count(*) FROM events) + (SELECT count(*) FROM customers)";
        sqlx::query_scalar(count).fetch_one(&self.direct).await.expect("a count")
    }

    async fn stored(&self, key: &str) -> Vec<i16> {
        let select = "SELECT status FROM idem.idempotency_keys WHERE key = $1 AND status IS NOT NULL";
        sqlx::query_scalar(select).bind(key).fetch_all(&self.direct).await.expect("the stored outcomes")
    }

    async fn trial(&self, kind: Kind, cell: Cell) -> (String, BTreeSet<String>) {
        let key = format!("words-{:016x}", fastrand::u64(..));
        let before = (self.rows().await, self.provider.counts().into_keys().collect());
        let (struck, first) = self.struck(kind, &key, cell.fault()).await;
        let mut found = BTreeSet::new();
        let effect = self.rows().await - before.0;
        kind.judge_first(&first, effect, cell, &mut found);
        kind.judge(&first, effect, &self.stored(&key).await, &mut found);
        if kind.keyed {
            self.retry(kind, &key, &before, &struck.app, first, &mut found).await;
        }
        self.judge_connection(&struck, cell, &mut found).await;
        struck.pool.close().await;
        (struck.met.unwrap_or_else(|| "nothing was struck".to_owned()), found)
    }

    /// Retries as a client does until there is a final answer, at the process that was struck and at another one.
    async fn retry(
        &self,
        kind: Kind,
        key: &str,
        (before, made): &(i64, BTreeSet<String>),
        struck: &Router,
        first: Reply,
        found: &mut BTreeSet<String>,
    ) {
        let mut last = first;
        for attempt in 0..200 {
            if !last.asks_for_a_retry() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
            last = kind.send([&self.other, struck][attempt % 2], key).await;
            let effect = self.rows().await - before;
            kind.judge(&last, effect, &self.stored(key).await, found);
        }
        if last.status != kind.status {
            found.insert(format!("the final answer is {last}"));
        }
        for app in [&self.other, struck] {
            let again = kind.send(app, key).await;
            if (again.status, &again.body) != (last.status, &last.body) {
                found.insert(format!("a retry after the final answer got {again}"));
            } else if kind.marked && !again.headers.contains_key("idempotency-replayed") {
                found.insert("a retry after the final answer is not marked as a replay".to_owned());
            }
        }
        let effect = self.rows().await - before;
        if effect != kind.rows {
            found.insert(format!("an effect of {effect} in the end"));
        }
        let charges = self.provider.counts().into_keys().filter(|charge| !made.contains(charge)).count();
        if charges != kind.charges {
            found.insert(format!("{charges} charges in the end"));
        }
    }

    /// The next user of the pool's connection finds it clean; one whose server has become a replica is not kept.
    async fn judge_connection(&self, struck: &Struck, cell: Cell, found: &mut BTreeSet<String>) {
        let own: Result<bool, _> =
            sqlx::query_scalar("SELECT pg_current_xact_id_if_assigned() IS NULL").fetch_one(&struck.pool).await;
        if !matches!(own, Ok(true)) {
            found.insert(format!("the pool's next query: {own:?}"));
        }
        if cell.says_replica() {
            let select = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1)";
            let mut alive = true;
            for _ in 0..100 {
                alive = sqlx::query_scalar(select).bind(struck.backend).fetch_one(&self.direct).await.expect("a list");
                if !alive {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            if alive {
                found.insert("the connection to a replica is kept".to_owned());
            }
        }
    }
}

/// The process that the word was said to.
struct Struck {
    pool: PgPool,
    app: Router,
    /// Whose answer the word replaced.
    backend: Option<i32>,
    met: Option<String>,
}

fn router(pool: PgPool, provider: &ExternalCalls) -> Router {
    process(pool, Duration::from_secs(1)).layer(Extension(provider.clone()))
}

impl Kind {
    async fn send(self, app: &Router, key: &str) -> Reply {
        let request = Request::post(self.path).header("content-type", "application/json").header("customer", "1");
        let request = if self.keyed { request.header("idempotency-key", key) } else { request };
        let body = self.body.replace("{key}", key);
        let answered = app.clone().oneshot(request.body(Body::from(body)).expect("a request"));
        let Ok(response) = tokio::time::timeout(Duration::from_secs(20), answered).await.expect("an answer in time");
        let (parts, body) = response.into_parts();
        let body = axum::body::to_bytes(body, usize::MAX).await.expect("a body");
        Reply { status: parts.status.as_u16(), headers: parts.headers, body }
    }

    /// The first answer is the outcome, or says that it is not known, or that the database is away.
    fn judge_first(self, reply: &Reply, effect: i64, cell: Cell, found: &mut BTreeSet<String>) {
        let retry_later = reply.status == 503 && reply.headers.contains_key("retry-after");
        let allowed = if self.keyed {
            reply.status == self.status || retry_later || (reply.status == 409 && reply.asks_for_a_retry())
        } else {
            // Whether a retry is safe is not known, so nothing invites one.
            let unknown = reply.status == 500 && reply.problem() == "outcome-unknown" && !reply.has_retry_after();
            reply.status == self.status || unknown || (retry_later && (effect == 0 || cell.is_a_lie()))
        };
        if !allowed {
            found.insert(format!("the first answer is {reply}, with an effect of {effect}"));
        }
        // A word about a statement that began nothing, or that committed nothing, has no outcome to look up.
        if effect == 0 && cell.says_replica() && !cell.executed && reply.status >= 500 && !retry_later && self.keyed {
            found.insert(format!("the server became a replica, and the answer is {reply}"));
        }
    }

    /// What holds for each answer.
    fn judge(self, reply: &Reply, effect: i64, stored: &[i16], found: &mut BTreeSet<String>) {
        if effect > self.rows {
            found.insert(format!("an effect of {effect}"));
        }
        if effect > 0 && reply.denies_the_effect() {
            found.insert(format!("not true: {reply}, with an effect of {effect}"));
        }
        for status in stored {
            if *status != self.status as i16 {
                found.insert(format!("stored: {status}, with an effect of {effect}"));
            }
        }
    }
}

impl Reply {
    fn has_retry_after(&self) -> bool {
        self.headers.contains_key("retry-after")
    }

    fn asks_for_a_retry(&self) -> bool {
        self.status >= 500 || (self.status == 409 && self.has_retry_after())
    }

    /// The end of the problem's type.
    fn problem(&self) -> String {
        let problem: serde_json::Value = serde_json::from_slice(&self.body).unwrap_or_default();
        problem["type"].as_str().and_then(|url| url.split('#').next_back()).unwrap_or_default().to_owned()
    }

    fn denies_the_effect(&self) -> bool {
        let text = String::from_utf8_lossy(&self.body).to_lowercase();
        ["nothing was changed", "nothing changed", "did not happen", "nothing happened", "rolled back", "is taken"]
            .iter()
            .any(|denial| text.contains(denial))
    }
}

impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = String::from_utf8_lossy(&self.body);
        let detail = serde_json::from_slice::<serde_json::Value>(&self.body).unwrap_or_default();
        let said = detail["detail"].as_str().unwrap_or(&text).to_owned();
        write!(f, "{} `{said}`{}", self.status, if self.has_retry_after() { " with Retry-After" } else { "" })
    }
}
