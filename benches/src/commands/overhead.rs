//! What a fresh key costs: the same order in a plain transaction, behind the attribute, and behind the usual flow.

use std::time::Duration;

use crate::Result;
use crate::application::fresh;
use crate::load::{CLIENTS, throughput};
use crate::measure::{Spent, alternate};
use crate::options::Options;
use crate::progress::Progress;
use crate::report::{Finding, Goal, Report, Table, number};
use crate::stage::{CONNECTIONS, Stage};

const HANDLERS: [(&str, &str); 3] =
    [("/plain", "plain transaction"), ("/annotated", "#[idempotent]"), ("/usual", "claim committed, work, update")];

pub(super) async fn measure(options: &Options) -> Result<Report> {
    let progress = Progress::of("overhead");
    let (rounds, slice) = options.size((25, Duration::from_millis(700)), (1, Duration::from_millis(100)));
    progress.stage("starting Postgres");
    let stage = Stage::open(&[]).await?;
    let (_database, application) = stage.application().await?;
    let mut spent = Spent::<3>::default();
    let series: [_; 3] = alternate(rounds, &progress, async |variant: usize| {
        let path = HANDLERS[variant].0;
        let requests = throughput(&application.router, slice, move || fresh(path));
        spent.note(variant, &application.pool, requests).await
    })
    .await?;

    let [plain, annotated, usual] = &series;
    let mut table = Table::new(["fresh keys", "requests/s", "of plain", "processor time each"]);
    for (variant, ((_, name), series)) in HANDLERS.iter().zip(&series).enumerate() {
        let ratio = number(series.against(plain).median);
        table.row([(*name).to_owned(), number(series.median()), ratio, spent.median(variant)]);
    }
    let (vs_plain, vs_usual) = (annotated.against(plain), annotated.against(usual));
    Ok(Report {
        command: "overhead",
        title: format!(
            "one order inserted under a fresh key, {CLIENTS} clients, {CONNECTIONS} connections, \
             {rounds} rounds of {slice:?} each"
        ),
        table,
        findings: vec![
            Finding::ratio(
                "vs_plain",
                "throughput of fresh keys, of the same handler in a plain transaction",
                vs_plain,
                Goal::AtLeast(0.8),
            ),
            Finding::ratio(
                "vs_usual",
                "throughput of fresh keys, of the usual flow (claim committed, work, update)",
                vs_usual,
                Goal::AtLeast(1.5),
            ),
        ],
        details: serde_json::Map::new(),
    })
}
