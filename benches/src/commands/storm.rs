//! A client library gone wrong: a thousand retries of one key at once.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use axum::http::StatusCode;
use idem_testing::TestDatabase;
use idem_testing::proxy::Proxy;
use sqlx::postgres::PgPoolOptions;
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use crate::Result;
use crate::application::{Application, order};
use crate::load::answer;
use crate::options::Options;
use crate::progress::Progress;
use crate::report::{Finding, Goal, Report, Table, number};
use crate::stage::{Stage, number as select};

const CONNECTIONS: u32 = 5;

/// What one storm did.
struct Storm {
    executions: u64,
    connections: u64,
    in_flight: usize,
    succeeded: usize,
    errors: usize,
    milliseconds: f64,
}

pub(super) async fn measure(options: &Options) -> Result<Report> {
    let progress = Progress::of("storm");
    let (storms, duplicates) = options.size((10, 1_000), (1, 100));
    progress.stage("starting Postgres");
    let stage = Stage::open(&[]).await?;
    let mut table = Table::new(["storm", "executions", "connections", "201", "409", "errors", "until the last answer"]);
    let mut all = Vec::new();
    for number_of_storm in 0..storms {
        progress.round(number_of_storm, storms);
        let storm = storm(&stage.database().await?, duplicates).await?;
        let counts = [storm.executions as f64, storm.connections as f64, storm.succeeded as f64]
            .into_iter()
            .chain([storm.in_flight as f64, storm.errors as f64])
            .map(number);
        let cells = std::iter::once((number_of_storm + 1).to_string()).chain(counts);
        table.rows.push(cells.chain([format!("{:.0} ms", storm.milliseconds)]).collect());
        all.push(storm);
    }

    let worst = |count: fn(&Storm) -> u64| all.iter().map(count).max().unwrap_or(0) as f64;
    Ok(Report {
        command: "storm",
        title: format!("{} duplicates of one key at once, a pool of {CONNECTIONS}", number(duplicates as f64)),
        table,
        findings: vec![
            Finding::count(
                "executions",
                "executions in a storm of 1,000 duplicates",
                worst(|storm| storm.executions),
                Goal::Exactly(1.0),
            ),
            Finding::count(
                "errors",
                "answers other than the outcome or 409",
                worst(|storm| storm.errors as u64),
                Goal::Exactly(0.0),
            ),
            Finding::count(
                "connections",
                "connections that the storm took",
                worst(|storm| storm.connections),
                Goal::Exactly(1.0),
            ),
        ],
        details: serde_json::Map::new(),
    })
}

async fn storm(database: &TestDatabase, duplicates: usize) -> Result<Storm> {
    let proxy = Proxy::start(&database.url())?;
    let application = Application::over(proxy.pool_with(PgPoolOptions::new().max_connections(CONNECTIONS)));
    let (start, begin) = (Arc::new(Barrier::new(duplicates)), Instant::now());
    let mut clients = JoinSet::new();
    for _ in 0..duplicates {
        let (start, router) = (Arc::clone(&start), application.router.clone());
        clients.spawn(async move {
            start.wait().await;
            answer(&router, order("/slow", "storm")).await.0
        });
    }
    let statuses = clients.join_all().await;
    let milliseconds = begin.elapsed().as_secs_f64() * 1_000.0;
    let of = |status| statuses.iter().filter(|other| **other == status).count();
    let (succeeded, in_flight) = (of(StatusCode::CREATED), of(StatusCode::CONFLICT));
    let executions = application.executions.load(Ordering::Relaxed);
    let connections = proxy.counts().connections;
    let effects = select(&application.pool, "SELECT count(*) FROM orders").await?;
    if effects != i64::try_from(executions)? {
        return Err(format!("{executions} executions left {effects} orders").into());
    }
    application.pool.close().await;
    let errors = duplicates - succeeded - in_flight;
    Ok(Storm { executions, connections, in_flight, succeeded, errors, milliseconds })
}
