//! What an operation of several commits costs: three transactions and a call to a provider, against the same four parts
//! written by hand.

use idem_testing::TestDatabase;
use sqlx::PgPool;

use super::counted::{Cost, SETTINGS, count};
use crate::Result;
use crate::application::fresh;
use crate::load::latencies;
use crate::measure::{alternate, quantile};
use crate::options::Options;
use crate::progress::Progress;
use crate::report::{Finding, Goal, Report, Table, number};
use crate::stage::Stage;

const HANDLERS: [(&str, &str); 2] = [("/parts", "four parts by hand"), ("/operation", "op: &mut Operation")];

pub(super) async fn measure(options: &Options) -> Result<Report> {
    let progress = Progress::of("steps");
    let (rounds, requests, counted) = options.size((25, 40, 500), (1, 5, 20));
    progress.stage("starting Postgres");
    let (stage, quiet) = (Stage::open(&[]).await?, Stage::open(&SETTINGS).await?);
    progress.stage("counting");
    let costs = count_each(&quiet.database().await?, counted).await?;
    let (_database, application) = stage.application().await?;
    let mut all: [Vec<f64>; 2] = Default::default();
    let series: [_; 2] = alternate(rounds, &progress, async |variant: usize| {
        let path = HANDLERS[variant].0;
        let latencies = latencies(&application.router, requests, || fresh(path)).await?;
        all[variant].extend(&latencies);
        Ok(quantile(&latencies, 0.5))
    })
    .await?;

    let mut table = Table::new(["3 transactions, 1 call", "commits", "round trips", "WAL bytes", "p50", "p95"]);
    for (((_, name), cost), latencies) in HANDLERS.iter().zip(&costs).zip(&all) {
        let milliseconds = |share| format!("{:.2} ms", quantile(latencies, share) * 1_000.0);
        table.row([
            (*name).to_owned(),
            number(cost.commits()),
            number(cost.round_trips()),
            number(cost.wal_bytes().round()),
            milliseconds(0.5),
            milliseconds(0.95),
        ]);
    }
    let [by_hand, operation] = &costs;
    Ok(Report {
        command: "steps",
        title: format!(
            "a purchase of three transactions and a call that takes no time and whose result is recorded, \
             {rounds} rounds of {requests} each"
        ),
        table,
        findings: vec![
            Finding::ratio(
                "vs_parts",
                "p50 of an operation of 3 transactions and 1 step, of the four parts' by hand",
                series[1].against(&series[0]),
                Goal::AtMost(1.3),
            ),
            Finding::count(
                "extra_commits",
                "commits of that operation beyond the parts' own",
                operation.commits() - by_hand.commits(),
                Goal::AtMost(1.0),
            ),
        ],
        details: [
            ("commits".to_owned(), operation.commits().into()),
            ("round_trips".to_owned(), operation.round_trips().into()),
            ("extra_round_trips".to_owned(), (operation.round_trips() - by_hand.round_trips()).into()),
        ]
        .into_iter()
        .collect(),
    })
}

async fn count_each(database: &TestDatabase, requests: usize) -> Result<[Cost; 2]> {
    let direct: PgPool = database.pool();
    let by_hand = count(HANDLERS[0].0, requests, database, &direct).await?;
    Ok([by_hand, count(HANDLERS[1].0, requests, database, &direct).await?])
}
