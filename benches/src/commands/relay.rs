//! Messages of the outbox: how many, how soon, and at what price; beside a job queue for Rust and Postgres with transactional
//! enqueue.

use std::time::{Duration, Instant};

use idem_runtime::{Idempotency, Message, Relay, Tx, idempotent};
use idem_testing::TestDatabase;
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;

use super::peers;
use crate::Result;
use crate::deliveries::{
    LIMIT, Measured, Producer, RATE, Receiver, Size, order_as_fast_as_possible, order_steadily, pick_up,
};
use crate::options::Options;
use crate::progress::Progress;
use crate::report::{Finding, Goal, Report, Table, number};
use crate::stage::{CONNECTIONS, Stage, number as select, run, wal_position};

/// The peer.
pub const PEER: &str = "awa";

/// A minute stands for an hour here, so vacuum looks for work every second instead of every minute.
const SETTINGS: [(&str, &str); 1] = [("autovacuum_naptime", "1s")];

pub(super) async fn measure(options: &Options) -> Result<Report> {
    let progress = Progress::of("relay");
    progress.stage("starting Postgres");
    let stage = Stage::open(&SETTINGS).await?;
    let (database, other) = (stage.database().await?, stage.database().await?);
    let own = measure_own(&database, Size::of(options.quick), &progress).await?;
    let peer = if options.quick { None } else { Some(measure_peer(&other, options, &progress).await?) };
    Ok(report(&own, peer.as_ref(), Size::of(options.quick)))
}

async fn measure_peer(database: &TestDatabase, options: &Options, progress: &Progress) -> Result<Measured> {
    let last =
        peers::run_program(progress, &["relay", if options.quick { "quick" } else { "full" }, &database.url()]).await?;
    Ok(serde_json::from_str(&last)?)
}

#[derive(Clone)]
struct Shop(Idempotency);

#[derive(Debug)]
struct Failure(String);

impl From<idem_runtime::Error> for Failure {
    fn from(error: idem_runtime::Error) -> Self {
        Self(error.to_string())
    }
}

impl From<sqlx::Error> for Failure {
    fn from(error: sqlx::Error) -> Self {
        Self(error.to_string())
    }
}

#[idempotent(scope = "shop", key = number, ttl = "24h")]
async fn place_order(idempotency: &Idempotency, tx: &mut Tx, number: i64) -> std::result::Result<(), Failure> {
    let insert = "INSERT INTO orders (tenant, product, quantity) VALUES ('tenant-1', $1, 3)";
    sqlx::query(insert).bind(number).execute(&mut *tx).await?;
    tx.outbox().send("order", &number.to_string(), &number).await?;
    Ok(())
}

impl Producer for Shop {
    async fn order(&self, number: i64) -> Result<()> {
        place_order(&self.0, number).await.map_err(|Failure(text)| text.into())
    }
}

fn start(idempotency: &Idempotency, receiver: &Receiver) -> Result<Relay> {
    let receiver = receiver.clone();
    let relay = idempotency.relay().on("order", move |message: Message| {
        let receiver = receiver.clone();
        async move {
            receiver.receive(message.payload()?).await;
            Ok::<_, idem_runtime::Error>(())
        }
    });
    Ok(relay.limit(LIMIT).start()?)
}

async fn measure_own(database: &TestDatabase, size: Size, progress: &Progress) -> Result<Measured> {
    let pool = database.pool_with(PgPoolOptions::new().max_connections(CONNECTIONS));
    let direct = database.pool_with(PgPoolOptions::new().max_connections(1));
    let (idempotency, receiver) = (Idempotency::new(pool.clone()), Receiver::default());
    progress.stage("a backlog");
    fill(&pool, size.backlog).await?;
    let before = (transactions(&direct).await?, wal_position(&direct).await?);
    let begin = Instant::now();
    let relay = start(&idempotency, &receiver)?;
    receiver.until(size.backlog).await?;
    let drained = size.backlog as f64 / begin.elapsed().as_secs_f64();
    relay.stop().await;
    let wal_bytes = (wal_position(&direct).await? - before.1) as f64 / size.backlog as f64;
    let commits = (transactions(&direct).await? - before.0) as f64 / size.backlog as f64;

    progress.stage("one by one");
    let shop = Shop(idempotency.clone());
    let relay = start(&idempotency, &receiver)?;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let pick_up = pick_up(&shop, &receiver, size.picked_up).await?;

    progress.stage("as fast as they come");
    let before = receiver.count();
    let begin = Instant::now();
    let made = order_as_fast_as_possible(&shop, size.crowded).await?;
    let ordered = made as f64 / begin.elapsed().as_secs_f64();
    let behind = made - (receiver.count() - before);
    receiver.until(before + made).await?;

    progress.stage("at a steady rate");
    let dead = "SELECT coalesce(sum(n_dead_tup), 0)::bigint FROM pg_stat_user_tables \
                WHERE schemaname = 'idem' AND relname IN ('outbox', 'relays')";
    let dead_rows = order_steadily(&shop, size.steady, async || select(&direct, dead).await).await?;
    relay.stop().await;
    Ok(Measured { drained, commits, wal_bytes, pick_up, ordered, behind, dead_rows })
}

async fn fill(pool: &PgPool, count: u64) -> Result<()> {
    let fill = format!(
        "INSERT INTO idem.outbox (topic, dedupe_key, payload) \
         SELECT 'order', number::text, convert_to(number::text, 'UTF8') FROM generate_series(1, {count}) AS number"
    );
    run(pool, &fill).await?;
    run(pool, "VACUUM ANALYZE idem.outbox").await?;
    run(pool, "CHECKPOINT").await
}

/// How many transactions have been committed in a database, our own question not counted.
///
/// # Errors
/// If the server does not answer.
pub async fn transactions(pool: &PgPool) -> Result<i64> {
    // Sessions report what they did a second later at the latest.
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    run(pool, "SELECT pg_stat_clear_snapshot()").await?;
    select(pool, "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()").await
}

fn report(own: &Measured, peer: Option<&Measured>, size: Size) -> Report {
    let mut table = Table::new([
        "outbox",
        "messages/s",
        "commits/message",
        "WAL bytes/message",
        "pick-up p50",
        "pick-up p99",
        "orders/s meanwhile",
        "most dead rows",
    ]);
    for (name, measured) in [("idem", Some(own)), (PEER, peer)] {
        let Some(measured) = measured else { continue };
        table.row([
            name.to_owned(),
            number(measured.drained.round()),
            number(measured.commits),
            number(measured.wal_bytes.round()),
            format!("{:.1} ms", measured.pick_up.p50),
            format!("{:.1} ms", measured.pick_up.p99),
            number(measured.ordered.round()),
            number(measured.dead_rows as f64),
        ]);
    }
    let mut findings = vec![
        Finding::count(
            "pick_up_p50",
            "from commit to the handler's call, p50, in ms",
            own.pick_up.p50,
            Goal::AtMost(5.0),
        ),
        Finding::count(
            "commits_per_message",
            "commits of the relay for a message of a backlog",
            own.commits,
            Goal::AtMost(0.1),
        ),
    ];
    if let Some(peer) = peer {
        findings.push(Finding::count(
            "vs_awa",
            "messages a second out of a backlog, of awa's",
            own.drained / peer.drained,
            Goal::AtLeast(1.0),
        ));
    }
    let details = [("own", own)].into_iter().chain(peer.map(|peer| (PEER, peer)));
    let details = details.filter_map(|(name, measured)| Some((name.to_owned(), serde_json::to_value(measured).ok()?)));
    Report {
        command: "relay",
        title: format!(
            "{} messages that wait, {LIMIT} at a time, settled; {} one by one; orders as fast as possible for {} s, each in a transaction \
             with its message, and {RATE} a second for {} s",
            number(size.backlog as f64),
            number(size.picked_up as f64),
            size.crowded.as_secs(),
            size.steady.as_secs()
        ),
        table,
        findings,
        details: details.collect(),
    }
}
