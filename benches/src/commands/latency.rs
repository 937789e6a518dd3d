//! What a fresh key costs where the database is a millisecond away.

use std::time::Duration;

use idem_testing::proxy::Proxy;
use sqlx::postgres::PgPoolOptions;

use crate::Result;
use crate::application::{Application, fresh};
use crate::load::latencies;
use crate::measure::{alternate, quantile};
use crate::options::Options;
use crate::progress::Progress;
use crate::report::{Finding, Goal, Report, Table};
use crate::stage::{CONNECTIONS, Stage};

const ROUND_TRIP: Duration = Duration::from_millis(1);

const HANDLERS: [(&str, &str); 4] = [
    ("/plain", "plain transaction"),
    ("/annotated", "#[idempotent]"),
    ("/annotated", "#[idempotent], pool_checks(false)"),
    ("/usual", "claim committed, work, update"),
];

pub(super) async fn measure(options: &Options) -> Result<Report> {
    let progress = Progress::of("latency");
    let (rounds, requests) = options.size((25, 40), (1, 5));
    progress.stage("starting Postgres");
    let stage = Stage::open(&[]).await?;
    let database = stage.database().await?;
    let proxy = Proxy::start(&database.url())?;
    let application = Application::over(proxy.pool_with(PgPoolOptions::new().max_connections(CONNECTIONS)));
    let unchecked = application.without_pool_checks()?;
    proxy.set_latency(ROUND_TRIP);
    let mut all: [Vec<f64>; 4] = Default::default();
    let series: [_; 4] = alternate(rounds, &progress, async |variant: usize| {
        let path = HANDLERS[variant].0;
        let router = if variant == 2 { &unchecked.router } else { &application.router };
        let latencies = latencies(router, requests, || fresh(path)).await?;
        all[variant].extend(&latencies);
        Ok(quantile(&latencies, 0.5))
    })
    .await?;

    let mut table = Table::new(["fresh keys", "p50", "p95", "p99"]);
    for ((_, name), latencies) in HANDLERS.iter().zip(&all) {
        let milliseconds = |share| format!("{:.2} ms", quantile(latencies, share) * 1_000.0);
        table.row([(*name).to_owned(), milliseconds(0.5), milliseconds(0.95), milliseconds(0.99)]);
    }
    let [plain, annotated, ..] = &series;
    Ok(Report {
        command: "latency",
        title: format!("{ROUND_TRIP:?} more for each round trip, {rounds} rounds of {requests} orders each"),
        table,
        findings: vec![Finding::ratio(
            "vs_plain",
            "p50 of a fresh key with 1 ms a round trip, of the plain transaction's",
            annotated.against(plain),
            Goal::AtMost(1.25),
        )],
        details: serde_json::Map::new(),
    })
}
