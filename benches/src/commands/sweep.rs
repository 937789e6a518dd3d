//! What it costs to forget: as many rows expire and are deleted as are written.

use std::time::{Duration, Instant};

use idem_runtime::Idempotency;
use idem_testing::TestDatabase;
use sqlx::postgres::PgPoolOptions;

use crate::Result;
use crate::application::{Application, fresh};
use crate::load::{CLIENTS, throughput};
use crate::measure::{alternate, quantile};
use crate::options::Options;
use crate::progress::Progress;
use crate::report::{Finding, Goal, Report, Table, number};
use crate::stage::{CONNECTIONS, Stage, number as select};

/// Minutes stand for days here, so vacuum looks for work every second instead of every minute.
const SETTINGS: [(&str, &str); 1] = [("autovacuum_naptime", "1s")];

/// The same for the sweeper, which rests ten seconds by default.
const SWEEP_INTERVAL: Duration = Duration::from_millis(200);

pub(super) async fn measure(options: &Options) -> Result<Report> {
    let progress = Progress::of("sweep");
    let (rounds, slice) = options.size((32, Duration::from_secs(3)), (2, Duration::from_millis(1_500)));
    progress.stage("starting Postgres");
    let stage = Stage::open(&SETTINGS).await?;
    let (kept_database, swept_database) = (stage.database().await?, stage.database().await?);
    let (kept, swept) = (application(&kept_database)?, application(&swept_database)?);
    let (mut sizes, mut deleted) = (Vec::new(), 0);
    let begin = Instant::now();
    let [alone, beside] = alternate(rounds, &progress, async |variant: usize| {
        if variant == 0 {
            return Ok(throughput(&kept.router, slice, || fresh("/brief")).await?.rate);
        }
        let sweeper = swept.idempotency.sweeper();
        let throughput = throughput(&swept.router, slice, || fresh("/brief")).await;
        deleted += sweeper.stop().await;
        sizes.push(select(&swept.pool, "SELECT pg_total_relation_size('idem.idempotency_keys')").await? as f64);
        Ok(throughput?.rate)
    })
    .await?;
    let elapsed = begin.elapsed();

    let written = select(&swept.pool, "SELECT count(*) FROM orders").await?;
    let foreground = beside.against(&alone);
    let size_ratio = last_quarter(&sizes) / third_quarter(&sizes);
    let mut table = Table::new(["rows expire after 1 s", "requests/s", "written", "swept", "table and indexes"]);
    let megabytes = |bytes: f64| format!("{:.1} MB", bytes / 1e6);
    let total = select(&kept.pool, "SELECT pg_total_relation_size('idem.idempotency_keys')").await? as f64;
    let kept_rows = select(&kept.pool, "SELECT count(*) FROM orders").await? as f64;
    table.row(["kept".to_owned(), number(alone.median()), number(kept_rows), number(0.0), megabytes(total)]);
    table.row([
        "swept".to_owned(),
        number(beside.median()),
        number(written as f64),
        number(deleted as f64),
        megabytes(last_quarter(&sizes)),
    ]);
    Ok(Report {
        command: "sweep",
        title: format!(
            "fresh keys while others are swept, {CLIENTS} clients, {CONNECTIONS} connections, {rounds} rounds of \
             {slice:?} each, {:.0} s in all",
            elapsed.as_secs_f64()
        ),
        table,
        findings: vec![
            Finding::ratio(
                "foreground",
                "throughput while rows are swept at the write rate, of that without sweeping",
                foreground,
                Goal::AtLeast(0.95),
            ),
            Finding::count(
                "size_ratio",
                "size of the table in the last quarter of the run, of that in the third quarter",
                size_ratio,
                Goal::AtMost(1.1),
            ),
        ],
        details: serde_json::Map::new(),
    })
}

fn application(database: &TestDatabase) -> Result<Application> {
    let pool = database.pool_with(PgPoolOptions::new().max_connections(CONNECTIONS));
    let idempotency = Idempotency::builder(pool.clone()).sweep_interval(SWEEP_INTERVAL).build()?;
    Ok(Application::with(pool, idempotency))
}

/// A file grows to the most that was ever alive or dead in it at once: by then it has.
fn third_quarter(sizes: &[f64]) -> f64 {
    quantile(&sizes[sizes.len() / 2..sizes.len() * 3 / 4], 0.5)
}

fn last_quarter(sizes: &[f64]) -> f64 {
    quantile(&sizes[sizes.len() * 3 / 4..], 0.5)
}
