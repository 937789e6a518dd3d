//! What a retry costs once the operation has completed.

use std::time::Duration;

use uuid::Uuid;

use crate::Result;
use crate::application::{look, order};
use crate::load::{CLIENTS, send, throughput};
use crate::measure::{Spent, alternate};
use crate::options::Options;
use crate::progress::Progress;
use crate::report::{Finding, Goal, Report, Table, number};
use crate::stage::{CONNECTIONS, Stage, run};

const REQUESTS: [&str; 3] = ["select one row by key", "replay", "replay, pool_checks(false)"];

pub(super) async fn measure(options: &Options) -> Result<Report> {
    let progress = Progress::of("replay");
    let (rounds, slice) = options.size((25, Duration::from_millis(700)), (1, Duration::from_millis(100)));
    let keys: Vec<_> = (0..options.size(5_000, 20)).map(|_| Uuid::new_v4().to_string()).collect();
    progress.stage("starting Postgres");
    let stage = Stage::open(&[]).await?;
    let (_database, application) = stage.application().await?;
    let unchecked = application.without_pool_checks()?;
    progress.stage("storing what is replayed");
    for key in &keys {
        send(&application.router, order("/annotated", key)).await?;
    }
    let copy = "INSERT INTO orders_by_key SELECT scope, key, row_number() OVER (), 42, 3 FROM idem.idempotency_keys";
    // The application's scopes are its tenants' names; the runtime's encoding of them is not.
    run(&application.pool, &copy.replace("scope,", "'tenant-1',")).await?;
    run(&application.pool, "VACUUM ANALYZE").await?;
    let mut spent = Spent::<3>::default();
    let series: [_; 3] = alternate(rounds, &progress, async |variant: usize| {
        let keys = keys.clone();
        let request = move || {
            let key = &keys[fastrand::usize(..keys.len())];
            if variant == 0 { look(key) } else { order("/annotated", key) }
        };
        let router = if variant == 2 { &unchecked.router } else { &application.router };
        let requests = throughput(router, slice, request);
        spent.note(variant, &application.pool, requests).await
    })
    .await?;

    let [select, replay, _] = &series;
    let mut table = Table::new(["requests", "requests/s", "of select", "processor time each"]);
    for (variant, (name, series)) in REQUESTS.iter().zip(&series).enumerate() {
        let ratio = number(series.against(select).median);
        table.row([(*name).to_owned(), number(series.median()), ratio, spent.median(variant)]);
    }
    Ok(Report {
        command: "replay",
        title: format!(
            "{} completed keys, {CLIENTS} clients, {CONNECTIONS} connections, {rounds} rounds of {slice:?} each",
            number(keys.len() as f64)
        ),
        table,
        findings: vec![Finding::ratio(
            "vs_select",
            "replays, of a handler that selects one row by key",
            replay.against(select),
            Goal::AtLeast(1.0),
        )],
        details: serde_json::Map::new(),
    })
}
