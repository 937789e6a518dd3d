//! What a fresh key costs where nothing is noisy: in commits, round trips and bytes of the write-ahead log.

use super::counted::{Cost, SETTINGS, count};
use crate::Result;
use crate::options::Options;
use crate::progress::Progress;
use crate::report::{Finding, Goal, Report, Table, number};
use crate::stage::Stage;

pub(super) async fn measure(options: &Options) -> Result<Report> {
    let progress = Progress::of("cost");
    let requests = options.size(2_000, 50);
    progress.stage("starting Postgres");
    let stage = Stage::open(&SETTINGS).await?;
    let database = stage.database().await?;
    let direct = database.pool();
    progress.stage("the plain handler");
    let plain = count("/plain", requests, &database, &direct).await?;
    progress.stage("the annotated handler");
    let annotated = count("/annotated", requests, &database, &direct).await?;

    let mut table = Table::new(["per fresh key", "commits", "round trips", "statements", "WAL bytes"]);
    table.row(row("plain transaction", &plain));
    table.row(row("#[idempotent]", &annotated));
    let extra_round_trips = annotated.round_trips() - plain.round_trips();
    let extra_wal_bytes = (annotated.wal_bytes() - plain.wal_bytes()).round();
    Ok(Report {
        command: "cost",
        title: format!("{requests} orders one after another, the pool's own pings counted too"),
        table,
        findings: vec![
            Finding::count("commits", "commits per fresh key", annotated.commits(), Goal::Exactly(1.0)),
            Finding::count(
                "extra_round_trips",
                "round trips beyond the plain transaction's",
                extra_round_trips,
                Goal::AtMost(1.0),
            ),
            Finding::count(
                "extra_wal_bytes",
                "bytes of the write-ahead log beyond the plain transaction's",
                extra_wal_bytes,
                Goal::AtMost(400.0),
            ),
        ],
        details: serde_json::Map::new(),
    })
}

fn row(name: &str, cost: &Cost) -> [String; 5] {
    [
        name.to_owned(),
        number(cost.commits()),
        number(cost.round_trips()),
        number(cost.statements()),
        number(cost.wal_bytes().round()),
    ]
}
