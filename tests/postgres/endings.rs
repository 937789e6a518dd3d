//! Whatever a handler does to its transaction, however it ends and whichever way it came to the connection: at most one effect, a
//! truthful answer, and a log line that names it.
//!
//! The cells are a product and not a list: {what the code does} × {how it ends} × {transaction, part, function, without a key} ×
//! {which way}, and each is tried three times with one key.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::{FromRef, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use futures_util::FutureExt;
use idem_runtime::{Error, Idempotency, Operation, Tx, idempotent};
use idem_testing::TestDatabase;
use idem_tests::{Gate, Reply, Tenant, request};
use serde::{Deserialize, Serialize};
use sqlx::postgres::PgPoolOptions;
use sqlx::{Acquire, AssertSqlSafe, Connection, PgConnection, PgPool};
use std::panic::AssertUnwindSafe;
use tower::ServiceExt;
use tracing_subscriber::filter::LevelFilter;

/// What the handler's code, or a helper of it, does after it has written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Act {
    Nothing,
    SwallowedError,
    SwallowedErrorThenSavepoint,
    CancelledSavepoint,
    TimedOutStatement,
    StatementTimeout,
    SavepointLeftOpen,
    SavepointInAFailedOne,
    ResetAll,
    Commit,
    CommitBegin,
    CommitAndChain,
    RollbackBegin,
    RollbackBeginCommit,
    CommitThenFailing,
    CommitBeginThenFailing,
    CommitAndChainThenFailing,
    RollbackBeginCommitThenFailing,
    ResetAllThenCommit,
    ForgedSetting,
    CopiedSetting,
    PrepareTransaction,
    Swapped,
    /// The pieces of the cell, one statement each.
    Sequence,
}

use Act::*;

const ACTS: [Act; 22] = [
    Nothing,
    SwallowedError,
    SwallowedErrorThenSavepoint,
    CancelledSavepoint,
    TimedOutStatement,
    StatementTimeout,
    SavepointLeftOpen,
    SavepointInAFailedOne,
    ResetAll,
    Commit,
    CommitBegin,
    CommitAndChain,
    RollbackBegin,
    RollbackBeginCommit,
    CommitThenFailing,
    CommitBeginThenFailing,
    CommitAndChainThenFailing,
    RollbackBeginCommitThenFailing,
    ResetAllThenCommit,
    ForgedSetting,
    CopiedSetting,
    PrepareTransaction,
];

impl Act {
    /// What it does in SQL alone.
    fn sql(self) -> Option<&'static str> {
        Some(match self {
            SwallowedError => "SELECT 1 / 0",
            StatementTimeout => "SET LOCAL statement_timeout = 5; SELECT pg_sleep(1)",
            ResetAll => "RESET ALL",
            Commit => "COMMIT",
            CommitBegin => "COMMIT; BEGIN",
            CommitAndChain => "COMMIT AND CHAIN",
            RollbackBegin => "ROLLBACK; BEGIN",
            RollbackBeginCommit => "ROLLBACK; BEGIN; INSERT INTO effects (cell) VALUES ('{cell}'); COMMIT",
            CommitThenFailing => "COMMIT; SELECT 1 / 0",
            CommitBeginThenFailing => "COMMIT; BEGIN; SELECT 1 / 0",
            CommitAndChainThenFailing => "COMMIT AND CHAIN; SELECT 1 / 0",
            RollbackBeginCommitThenFailing => {
                "ROLLBACK; BEGIN; INSERT INTO effects (cell) VALUES ('{cell}'); COMMIT; SELECT 1 / 0"
            }
            ResetAllThenCommit => "RESET ALL; COMMIT",
            ForgedSetting => {
                "COMMIT; BEGIN; SELECT set_config('idem.claim', 'true', true), set_config('idem.witness', 'true', false)"
            }
            CopiedSetting => {
                "SELECT set_config('copied.claim', current_setting('idem.claim'), false); COMMIT; BEGIN; \
                 SELECT set_config('idem.claim', current_setting('copied.claim'), true)"
            }
            PrepareTransaction => "PREPARE TRANSACTION '{cell}'",
            _ => return None,
        })
    }

    /// Whether something of it may be committed behind our back.
    fn may_escape(self) -> bool {
        !matches!(
            self,
            Nothing
                | SwallowedError
                | SwallowedErrorThenSavepoint
                | CancelledSavepoint
                | TimedOutStatement
                | StatementTimeout
                | SavepointLeftOpen
                | ResetAll
        )
    }
}

/// Which way the helper comes to the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Way {
    /// `&mut *tx`
    Executor,
    /// `&mut **tx`
    Deref,
    /// A helper that takes `&mut PgConnection`.
    Connection,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Ending {
    Success,
    Refusal,
    TooManyRequests,
    Failure,
    Panic,
    /// The `Err` of a function, or of a part.
    Err,
    ClientGone,
}

const ENDINGS: [Ending; 7] = [
    Ending::Success,
    Ending::Refusal,
    Ending::TooManyRequests,
    Ending::Failure,
    Ending::Panic,
    Ending::Err,
    Ending::ClientGone,
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unit {
    Transaction,
    FirstPart,
    LaterPart,
    Function,
    Unkeyed,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Cell {
    name: String,
    act: Act,
    way: Way,
    ending: Ending,
    #[serde(default)]
    pieces: Vec<String>,
}

async fn helper(connection: &mut PgConnection, sql: &str) -> sqlx::Result<()> {
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(connection).await.map(drop)
}

async fn savepoint_helper(connection: &mut PgConnection, sql: &str) -> sqlx::Result<()> {
    let mut savepoint = Connection::begin(connection).await?;
    helper(&mut savepoint, sql).await?;
    savepoint.commit().await
}

async fn run(tx: &mut Tx, way: Way, sql: &str) -> sqlx::Result<()> {
    match way {
        Way::Executor => sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&mut *tx).await.map(drop),
        Way::Deref => sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&mut **tx).await.map(drop),
        Way::Connection => helper(tx, sql).await,
    }
}

async fn begin(tx: &mut Tx, way: Way) -> sqlx::Result<sqlx::Transaction<'_, sqlx::Postgres>> {
    match way {
        Way::Executor => Acquire::begin(tx).await,
        Way::Deref | Way::Connection => Connection::begin(&mut **tx).await,
    }
}

/// Writes, does what the cell says, and goes on writing: errors are swallowed.
async fn work(tx: &mut Tx, cell: &Cell) {
    let Cell { name, act, way, .. } = cell;
    let write = format!("INSERT INTO effects (cell) VALUES ('{name}')");
    run(tx, *way, &write).await.expect("the first write");
    if let Some(sql) = act.sql() {
        let _ = run(tx, *way, &sql.replace("{cell}", name)).await;
    }
    for piece in &cell.pieces {
        let _ = run(tx, *way, &piece.replace("{cell}", name)).await;
    }
    match act {
        SwallowedErrorThenSavepoint => {
            let _ = run(tx, *way, "SELECT 1 / 0").await;
            match way {
                Way::Connection => {
                    let _ = savepoint_helper(tx, "SELECT 1").await;
                }
                _ => drop(begin(tx, *way).await),
            }
        }
        CancelledSavepoint => drop(begin(tx, *way).now_or_never()),
        TimedOutStatement => {
            let slow = run(tx, *way, "SELECT pg_sleep(0.05)");
            let _ = tokio::time::timeout(Duration::from_millis(5), slow).await;
        }
        SavepointLeftOpen => std::mem::forget(begin(tx, *way).await),
        SavepointInAFailedOne => {
            if let Ok(mut outer) = begin(tx, *way).await {
                let _ = helper(&mut outer, "SELECT 1 / 0").await;
                drop(Connection::begin(&mut *outer).await);
                let _ = helper(&mut outer, &write).await;
                let _ = outer.commit().await;
            }
        }
        _ => {}
    }
    if act.may_escape() || matches!(act, SwallowedErrorThenSavepoint | CancelledSavepoint) {
        let late = format!("INSERT INTO late (cell) VALUES ('{name}')");
        let _ = run(tx, *way, &late).await;
    }
}

fn answer(ending: Ending) -> StatusCode {
    match ending {
        Ending::Success | Ending::ClientGone => StatusCode::CREATED,
        Ending::Refusal => StatusCode::CONFLICT,
        Ending::TooManyRequests => StatusCode::TOO_MANY_REQUESTS,
        Ending::Failure | Ending::Err => StatusCode::SERVICE_UNAVAILABLE,
        Ending::Panic => panic!("the handler panics, as the cell says"),
    }
}

#[derive(Debug)]
struct Failed;

impl From<Error> for Failed {
    fn from(_: Error) -> Self {
        Self
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        StatusCode::SERVICE_UNAVAILABLE.into_response()
    }
}

#[derive(Clone, FromRef)]
struct AppState {
    idempotency: Idempotency,
    gate: Arc<Gate>,
}

async fn end(gate: &Gate, ending: Ending) -> StatusCode {
    if ending == Ending::ClientGone {
        gate.pass().await;
    }
    answer(ending)
}

#[idempotent(scope = tenant.id, ttl = "24h", key = optional)]
async fn transaction(tenant: Tenant, State(gate): State<Arc<Gate>>, tx: &mut Tx, Json(cell): Json<Cell>) -> StatusCode {
    work(tx, &cell).await;
    end(&gate, cell.ending).await
}

async fn part(op: &mut Operation, gate: &Gate, cell: &Cell) -> Result<StatusCode, Failed> {
    let worked = op.transaction("work", async |tx| {
        work(tx, cell).await;
        match cell.ending {
            Ending::Err => Err(Failed),
            Ending::Panic => panic!("the part panics, as the cell says"),
            Ending::ClientGone => {
                gate.pass().await;
                Ok(())
            }
            _ => Ok(()),
        }
    });
    let worked = worked.await;
    if cell.ending == Ending::Err {
        worked?;
    }
    Ok(answer(cell.ending))
}

#[idempotent(scope = tenant.id, ttl = "24h")]
async fn first_part(
    tenant: Tenant,
    State(gate): State<Arc<Gate>>,
    op: &mut Operation,
    Json(cell): Json<Cell>,
) -> Result<StatusCode, Failed> {
    part(op, &gate, &cell).await
}

#[idempotent(scope = tenant.id, ttl = "24h")]
async fn later_part(
    tenant: Tenant,
    State(gate): State<Arc<Gate>>,
    op: &mut Operation,
    Json(cell): Json<Cell>,
) -> Result<StatusCode, Failed> {
    op.transaction("first", async |tx| helper(tx, "SELECT 1").await.map_err(|_| Failed)).await?;
    part(op, &gate, &cell).await
}

#[derive(Debug)]
enum CallError {
    Own,
    Idempotency(Error),
}

impl From<Error> for CallError {
    fn from(error: Error) -> Self {
        Self::Idempotency(error)
    }
}

#[idempotent(scope = "cells", key = key, ttl = "24h")]
async fn function(
    idempotency: &Idempotency,
    gate: Arc<Gate>,
    key: String,
    tx: &mut Tx,
    cell: Cell,
) -> Result<u16, CallError> {
    work(tx, &cell).await;
    match cell.ending {
        Ending::Success => Ok(201),
        Ending::ClientGone => {
            gate.pass().await;
            Ok(201)
        }
        Ending::Panic => panic!("the function panics, as the cell says"),
        _ => Err(CallError::Own),
    }
}

/// Exchanges the transactions of two operations.
#[idempotent(scope = "swapped", key = key, ttl = "24h")]
async fn swap(idempotency: &Idempotency, key: String, tx: &mut Tx, other: Other<'_>) -> Result<(), CallError> {
    helper(tx, &format!("INSERT INTO effects (cell) VALUES ('inner {key}')")).await.expect("a write");
    std::mem::swap(tx, other.0);
    Ok(())
}

struct Other<'a>(&'a mut Tx);

#[idempotent(scope = tenant.id, ttl = "24h")]
async fn swapping(
    tenant: Tenant,
    State(idempotency): State<Idempotency>,
    tx: &mut Tx,
    Json(cell): Json<Cell>,
) -> StatusCode {
    helper(tx, &format!("INSERT INTO effects (cell) VALUES ('{}')", cell.name)).await.expect("a write");
    let _ = swap(&idempotency, cell.name.clone(), Other(tx)).await;
    answer(cell.ending)
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn take(&self) -> String {
        String::from_utf8(std::mem::take(&mut *self.0.lock().unwrap())).expect("a text")
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct World {
    _database: TestDatabase,
    pool: PgPool,
    idempotency: Idempotency,
    gate: Arc<Gate>,
    router: Router,
    log: Log,
    _guard: tracing::subscriber::DefaultGuard,
}

/// What one attempt came to.
#[derive(Debug)]
enum Seen {
    Answer(u16, String),
    Panicked,
    Gone,
    OwnError,
}

impl World {
    async fn start() -> Self {
        let log = Log::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(LevelFilter::WARN)
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .finish();
        let guard = tracing::subscriber::set_default(subscriber);
        let database = TestDatabase::create().await.expect("a database");
        let pool = PgPoolOptions::new().max_connections(3).connect_lazy_with(database.connect_options());
        let tables = "CREATE TABLE effects (id bigserial, cell text); CREATE TABLE late (id bigserial, cell text)";
        sqlx::raw_sql(tables).execute(&pool).await.expect("the tables");
        let idempotency = Idempotency::new(pool.clone());
        idempotency.migrate().await.expect("the migrations");
        let gate = Arc::new(Gate::new());
        let state = AppState { idempotency: idempotency.clone(), gate: Arc::clone(&gate) };
        let router = Router::new()
            .route("/transaction", post(transaction))
            .route("/first", post(first_part))
            .route("/later", post(later_part))
            .route("/swapping", post(swapping))
            .with_state(state);
        Self { _database: database, pool, idempotency, gate, router, log, _guard: guard }
    }

    async fn attempt(&self, unit: Unit, cell: &Cell, path: Option<&str>) -> Seen {
        let attempt = async {
            if unit == Unit::Function {
                let called = function(&self.idempotency, Arc::clone(&self.gate), cell.name.clone(), cell.clone()).await;
                return match called {
                    Ok(status) => Seen::Answer(status, String::new()),
                    Err(CallError::Own) => Seen::OwnError,
                    Err(CallError::Idempotency(error)) => {
                        let reply = Reply::of(error.into_response()).await;
                        Seen::Answer(reply.status, String::from_utf8_lossy(&reply.body).into_owned())
                    }
                };
            }
            let path = path.unwrap_or(match unit {
                Unit::FirstPart => "/first",
                Unit::LaterPart => "/later",
                _ => "/transaction",
            });
            let headers = [("tenant", "a"), ("idempotency-key", cell.name.as_str())];
            let headers = if unit == Unit::Unkeyed { &headers[..1] } else { &headers[..] };
            let reply =
                Reply::of(self.router.clone().oneshot(request(path, headers, cell)).await.expect("an answer")).await;
            Seen::Answer(reply.status, String::from_utf8_lossy(&reply.body).into_owned())
        };
        let attempt = AssertUnwindSafe(attempt).catch_unwind();
        let seen = if cell.ending == Ending::ClientGone {
            tokio::select! {
                () = self.gate.arrival() => {
                    // A function ends with its caller, a handler goes on.
                    if unit != Unit::Function {
                        self.gate.open(1);
                    }
                    Seen::Gone
                }
                seen = attempt => seen.unwrap_or(Seen::Panicked),
            }
        } else {
            attempt.await.unwrap_or(Seen::Panicked)
        };
        assert_eq!(self.idempotency.shutdown().await, 0, "{cell:?}: it ends");
        seen
    }

    async fn count(&self, table: &str, cell: &str) -> i64 {
        let count = format!("SELECT count(*) FROM {table} WHERE cell = $1");
        sqlx::query_scalar(AssertSqlSafe(count)).bind(cell).fetch_one(&self.pool).await.expect("a count")
    }
}

fn check(unit: Unit, cell: &Cell, seen: &[Seen], effects: i64, log: &str) -> Result<(), String> {
    let says_unknown = |seen: &Seen| matches!(seen, Seen::Answer(500, body) if body.contains("effects-unknown"));
    let says_done = |seen: &Seen| matches!(seen, Seen::Answer(201, _));
    let keyed = unit != Unit::Unkeyed;
    if keyed && effects > 1 {
        return Err(format!("{effects} effects"));
    }
    let says_nothing_was_changed =
        |seen: &Seen| matches!(seen, Seen::Answer(_, body) if body.contains("nothing was changed"));
    if effects > 0 && seen.iter().any(says_nothing_was_changed) {
        return Err("an effect, and an answer that denies it".to_owned());
    }
    // A part that has committed stays: the handler's own refusal may follow it, and is no word about it.
    let part_committed = matches!(unit, Unit::FirstPart | Unit::LaterPart)
        && matches!(cell.act, Nothing | TimedOutStatement | CancelledSavepoint | CopiedSetting)
        && !matches!(cell.ending, Ending::Err | Ending::Panic);
    if part_committed {
        return Ok(());
    }
    if effects > 0
        && !seen.iter().any(|seen| says_unknown(seen) || says_done(seen) || matches!(seen, Seen::Panicked | Seen::Gone))
    {
        return Err("an effect, and no answer tells of it".to_owned());
    }
    if keyed && effects > 0 && !matches!(seen.last(), Some(last) if says_unknown(last) || says_done(last)) {
        return Err("an effect, and the last answer does not tell of it".to_owned());
    }
    if effects == 0 && seen.iter().any(says_done) {
        return Err("success, and no effect".to_owned());
    }
    if cell.act == Nothing {
        // A function ends with its caller, a handler goes on.
        let goes_on = cell.ending == Ending::ClientGone && unit != Unit::Function;
        let expected = cell.ending == Ending::Success || goes_on;
        return if (effects > 0) == expected { Ok(()) } else { Err("an orderly handler".to_owned()) };
    }
    if !cell.act.may_escape() && seen.iter().any(says_unknown) && cell.way != Way::Connection {
        return Err("what is no escape is called one".to_owned());
    }
    let named = ["transaction", "first_part", "later_part", "function"].iter().any(|name| log.contains(name));
    // A setting that is copied on purpose passes where it commits: the outcome is stored with it, and nothing runs again.
    // An error that is swallowed before a refusal or a failure changes nothing: there is nothing to tell.
    let quiet =
        matches!(cell.act, CopiedSetting | SwallowedError | StatementTimeout | TimedOutStatement | CancelledSavepoint);
    if !named && !quiet && !says_done(seen.last().expect("an attempt")) {
        return Err("no log line".to_owned());
    }
    Ok(())
}

async fn every_cell(unit: Unit) {
    let world = World::start().await;
    let mut wrong = Vec::new();
    let mut cells = 0;
    for act in ACTS {
        for way in [Way::Executor, Way::Deref, Way::Connection] {
            for ending in ENDINGS {
                let own_err = matches!(unit, Unit::FirstPart | Unit::LaterPart | Unit::Function);
                let answered = !matches!(ending, Ending::Refusal | Ending::TooManyRequests | Ending::Failure);
                if (ending == Ending::Err && !own_err) || (unit == Unit::Function && !answered) {
                    continue;
                }
                cells += 1;
                let cell = Cell { name: format!("{unit:?}-{cells}"), act, way, ending, pieces: Vec::new() };
                world.log.take();
                let mut seen = Vec::new();
                for _ in 0..3 {
                    seen.push(world.attempt(unit, &cell, None).await);
                }
                let effects = world.count("effects", &cell.name).await;
                let late = world.count("late", &cell.name).await;
                let log = world.log.take();
                let checked = check(unit, &cell, &seen, effects, &log).and_then(|()| {
                    if unit != Unit::Unkeyed && late > 1 { Err(format!("{late} late effects")) } else { Ok(()) }
                });
                if let Err(problem) = checked {
                    wrong.push(format!("{act:?} {way:?} {ending:?}: {problem}\n   {seen:?}\n   {log}"));
                }
            }
        }
    }
    println!("{unit:?}: {cells} cells, three attempts each");
    assert!(wrong.is_empty(), "{unit:?}: {} of {cells} cells:\n{}", wrong.len(), wrong.join("\n"));
    // Whatever went wrong, the pool is clean.
    for _ in 0..6 {
        sqlx::query("SELECT 1").execute(&world.pool).await.expect("a clean connection");
    }
}

#[tokio::test]
async fn every_ending_of_a_transaction_has_at_most_one_effect_and_a_truthful_answer() {
    every_cell(Unit::Transaction).await;
}

#[tokio::test]
async fn every_ending_of_a_first_part_has_at_most_one_effect_and_a_truthful_answer() {
    every_cell(Unit::FirstPart).await;
}

#[tokio::test]
async fn every_ending_of_a_later_part_has_at_most_one_effect_and_a_truthful_answer() {
    every_cell(Unit::LaterPart).await;
}

#[tokio::test]
async fn every_ending_of_a_function_has_at_most_one_effect_and_a_truthful_answer() {
    every_cell(Unit::Function).await;
}

#[tokio::test]
async fn every_ending_without_a_key_has_a_truthful_answer() {
    every_cell(Unit::Unkeyed).await;
}

/// What a helper may run, in any order.
const PIECES: [&str; 11] = [
    "COMMIT",
    "BEGIN",
    "ROLLBACK",
    "COMMIT AND CHAIN",
    "ROLLBACK AND CHAIN",
    "SELECT 1 / 0",
    "INSERT INTO effects (cell) VALUES ('{cell}')",
    "SAVEPOINT mine",
    "ROLLBACK TO SAVEPOINT mine",
    "RELEASE SAVEPOINT mine",
    "RESET ALL",
];

/// What becomes of the claim's transaction under a sequence, as far as the runtime can see it.
#[derive(Debug, PartialEq)]
struct Fate {
    /// The transaction that is open in the end is not the claim's.
    is_other: bool,
    /// A statement in it has failed.
    is_aborted: bool,
    witnessed: bool,
}

impl Fate {
    fn of(pieces: &[String]) -> Self {
        let (mut open, mut other, mut aborted, mut savepoint, mut witnessed) = (true, false, false, false, false);
        let mut reset = false;
        for piece in pieces {
            match piece.as_str() {
                "COMMIT" | "ROLLBACK" | "COMMIT AND CHAIN" | "ROLLBACK AND CHAIN" => {
                    let chains = piece.ends_with("CHAIN");
                    if chains && !open {
                        continue;
                    }
                    witnessed |= open && !other && !aborted && !reset && piece.starts_with("COMMIT");
                    (open, other, aborted, savepoint) = (chains, true, false, false);
                }
                "BEGIN" if !open => (open, other, aborted, savepoint) = (true, true, false, false),
                "SELECT 1 / 0" => aborted |= open,
                "SAVEPOINT mine" => savepoint |= open && !aborted,
                "ROLLBACK TO SAVEPOINT mine" if savepoint => aborted = false,
                "ROLLBACK TO SAVEPOINT mine" => aborted |= open,
                "RELEASE SAVEPOINT mine" if savepoint && !aborted => savepoint = false,
                "RELEASE SAVEPOINT mine" => aborted |= open,
                // The witness is gone with it.
                "RESET ALL" if !aborted => (witnessed, reset) = (false, true),
                _ => {}
            }
        }
        Self { is_other: open && other, is_aborted: aborted, witnessed }
    }

    /// What is documented as not seen: a failed transaction that is not the claim's, and no witness of what came before it.
    fn is_unseen(&self) -> bool {
        self.is_other && self.is_aborted && !self.witnessed
    }
}

#[tokio::test]
async fn no_sequence_of_statements_repeats_an_effect_or_denies_it() {
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(|| fastrand::u64(..));
    let cells: usize = std::env::var("CELLS").ok().and_then(|cells| cells.parse().ok()).unwrap_or(250);
    println!("SEED={seed} CELLS={cells}");
    let mut random = fastrand::Rng::with_seed(seed);
    let world = World::start().await;
    for number in 0..cells {
        let pieces: Vec<String> =
            (0..random.usize(1..6)).map(|_| random.choice(PIECES).expect("a piece").to_owned()).collect();
        let unit =
            random.choice([Unit::Transaction, Unit::FirstPart, Unit::LaterPart, Unit::Function]).expect("a unit");
        let way = random.choice([Way::Executor, Way::Deref, Way::Connection]).expect("a way");
        let ending = match unit {
            Unit::Function => random.choice([Ending::Success, Ending::Err, Ending::Panic, Ending::ClientGone]),
            _ => random.choice(ENDINGS),
        };
        let ending = ending.expect("an ending");
        if Fate::of(&pieces).is_unseen() {
            continue;
        }
        let cell = Cell { name: format!("sequence-{number}"), act: Sequence, way, ending, pieces };
        let mut seen = vec![world.attempt(unit, &cell, None).await];
        let first = world.count("effects", &cell.name).await;
        for _ in 0..2 {
            seen.push(world.attempt(unit, &cell, None).await);
        }
        let effects = world.count("effects", &cell.name).await;
        let what = format!("SEED={seed} {unit:?} {cell:?}: {first} effects, then {effects}: {seen:?}");
        assert!(first == 0 || effects == first, "repeated: {what}");
        let denies = |seen: &Seen| matches!(seen, Seen::Answer(_, body) if body.contains("nothing was changed"));
        assert!(effects == 0 || !seen.iter().any(denies), "denied: {what}");
        let done = |seen: &Seen| matches!(seen, Seen::Answer(201, _));
        assert!(effects > 0 || !seen.iter().any(done), "claimed: {what}");
    }
}

#[tokio::test]
async fn two_transactions_that_are_exchanged_commit_nothing_of_each_other() {
    let world = World::start().await;
    for (number, ending) in [Ending::Success, Ending::Refusal, Ending::Failure, Ending::Panic].into_iter().enumerate() {
        let cell =
            Cell { name: format!("swapped-{number}"), act: Swapped, way: Way::Connection, ending, pieces: Vec::new() };
        for _ in 0..3 {
            let seen = world.attempt(Unit::Transaction, &cell, Some("/swapping")).await;
            assert!(
                matches!(&seen, Seen::Panicked)
                    || matches!(&seen, Seen::Answer(500, body) if body.contains("effects-unknown")),
                "{ending:?}: {seen:?}"
            );
        }
        assert_eq!(world.count("effects", &cell.name).await, 0, "{ending:?}");
        assert_eq!(world.count("effects", &format!("inner {}", cell.name)).await, 0, "{ending:?}");
        let log = world.log.take();
        assert!(log.contains("swapping") && log.contains("exchanged"), "{log}");
    }
}
