//! What a fresh key costs where nothing is noisy: in commits, round trips and bytes of the write-ahead log.

use std::time::Duration;

use idem_testing::TestDatabase;
use idem_testing::proxy::{Counts, Proxy};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;

use crate::Result;
use crate::application::{Application, fresh};
use crate::load::send;
use crate::options::Options;
use crate::progress::Progress;
use crate::report::{Finding, Goal, Report, Table, number};
use crate::stage::{Stage, wal_position};

/// Nothing else may write to the log meanwhile.
const SETTINGS: [(&str, &str); 2] = [("autovacuum", "off"), ("checkpoint_timeout", "1d")];

const WARM_UP: usize = 50;

/// What a number of requests took.
struct Cost {
    counts: Counts,
    wal_bytes: i64,
    requests: usize,
}

impl Cost {
    fn each(&self, count: u64) -> f64 {
        count as f64 / self.requests as f64
    }

    fn wal_bytes(&self) -> f64 {
        self.wal_bytes as f64 / self.requests as f64
    }

    fn row(&self, name: &str) -> [String; 5] {
        let each = |count| number(self.each(count));
        let counts = &self.counts;
        [
            name.to_owned(),
            each(counts.commits),
            each(counts.round_trips),
            each(counts.statements),
            number(self.wal_bytes().round()),
        ]
    }
}

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
    table.row(plain.row("plain transaction"));
    table.row(annotated.row("#[idempotent]"));
    let extra_round_trips = annotated.each(annotated.counts.round_trips) - plain.each(plain.counts.round_trips);
    let extra_wal_bytes = (annotated.wal_bytes() - plain.wal_bytes()).round();
    Ok(Report {
        command: "cost",
        title: format!("{requests} orders one after another, the pool's own pings counted too"),
        table,
        findings: vec![
            Finding::count(
                "commits",
                "commits per fresh key",
                annotated.each(annotated.counts.commits),
                Goal::Exactly(1.0),
            ),
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

async fn count(path: &str, requests: usize, database: &TestDatabase, direct: &PgPool) -> Result<Cost> {
    let proxy = Proxy::start(&database.url())?;
    let pool = proxy.pool_with(PgPoolOptions::new().max_connections(1));
    let application = Application::over(pool.clone());
    for _ in 0..WARM_UP {
        send(&application.router, fresh(path)).await?;
        released(&pool).await;
    }
    let (counts, position) = (proxy.counts(), wal_position(direct).await?);
    for _ in 0..requests {
        send(&application.router, fresh(path)).await?;
        released(&pool).await;
    }
    let counts = proxy.counts() - counts;
    let wal_bytes = wal_position(direct).await? - position;
    pool.close().await;
    Ok(Cost { counts, wal_bytes, requests })
}

/// The pool takes a connection back in the background, and pings it first.
async fn released(pool: &PgPool) {
    while pool.num_idle() == 0 {
        tokio::time::sleep(Duration::from_micros(50)).await;
    }
}
