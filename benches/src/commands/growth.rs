//! What a fresh key costs when ten million are stored already.

use std::time::{Duration, Instant};

use sqlx::PgPool;

use crate::Result;
use crate::application::fresh;
use crate::load::{CLIENTS, throughput};
use crate::measure::{Series, alternate};
use crate::options::Options;
use crate::progress::Progress;
use crate::report::{Finding, Goal, Report, Table, number};
use crate::stage::{CONNECTIONS, Stage, number as select, run};

const FEW: u64 = 10_000;
const MANY: u64 = 10_000_000;

/// Only for the filling: it writes more than a minute's worth of a default log.
const SETTINGS: [(&str, &str); 3] =
    [("max_wal_size", "16GB"), ("maintenance_work_mem", "512MB"), ("autovacuum", "off")];

pub(super) async fn measure(options: &Options) -> Result<Report> {
    let progress = Progress::of("growth");
    let (rounds, slice) = options.size((15, Duration::from_secs(1)), (1, Duration::from_millis(100)));
    let sizes = [options.size(FEW, 100), options.rows.unwrap_or(options.size(MANY, 10_000))];
    progress.stage("starting Postgres");
    let stage = Stage::open(&SETTINGS).await?;
    let [few, many] = [stage.application().await?, stage.application().await?];
    let begin = Instant::now();
    for (rows, (_, application)) in sizes.into_iter().zip([&few, &many]) {
        progress.stage(&format!("storing {} rows", number(rows as f64)));
        fill(&application.pool, rows).await?;
    }
    let filling = begin.elapsed();
    run(&many.1.pool, "CHECKPOINT").await?;
    let series: [_; 2] = alternate(rounds, &progress, async |variant: usize| {
        let router = &[&few, &many][variant].1.router;
        Ok(throughput(router, slice, || fresh("/annotated")).await?.rate)
    })
    .await?;

    let times = series.each_ref().map(|Series(rates)| Series(rates.iter().map(|rate| 1.0 / rate).collect()));
    let mut table = Table::new(["stored rows", "requests/s", "table and indexes"]);
    for ((rows, series), (_, application)) in sizes.into_iter().zip(&series).zip([&few, &many]) {
        let size = "SELECT pg_total_relation_size('idem.idempotency_keys')";
        let bytes = select(&application.pool, size).await?;
        table.row([number(rows as f64), number(series.median()), format!("{:.0} MB", bytes as f64 / 1e6)]);
    }
    Ok(Report {
        command: "growth",
        title: format!(
            "fresh keys beside what is stored, {CLIENTS} clients, {CONNECTIONS} connections, {rounds} rounds of \
             {slice:?} each, right after a checkpoint (filled in {:.0} s)",
            filling.as_secs_f64()
        ),
        table,
        findings: vec![Finding::ratio(
            "time_ratio",
            "time of a fresh key with 10 million stored, of that with 10 thousand",
            times[1].against(&times[0]),
            Goal::AtMost(1.2),
        )],
        details: serde_json::Map::new(),
    })
}

/// Stores outcomes as the runtime does, in the order of their expiry and with random keys. Indexes are built at the end,
/// which takes a tenth of the time; their definitions are read back, so that they are the runtime's own.
async fn fill(pool: &PgPool, rows: u64) -> Result<()> {
    let indexes: Vec<String> = sqlx::query_scalar(
        "SELECT indexdef FROM pg_indexes \
         WHERE schemaname = 'idem' AND tablename = 'idempotency_keys' AND indexname <> 'idempotency_keys_pkey'",
    )
    .fetch_all(pool)
    .await?;
    let drops = "SELECT coalesce(string_agg(format('DROP INDEX idem.%I', indexname), '; '), '') FROM pg_indexes \
                 WHERE schemaname = 'idem' AND tablename = 'idempotency_keys' AND indexname <> 'idempotency_keys_pkey'";
    let drops: String = sqlx::query_scalar(drops).fetch_one(pool).await?;
    run(
        pool,
        &format!(
            "ALTER TABLE idem.idempotency_keys DROP CONSTRAINT idempotency_keys_pkey; {drops};
             INSERT INTO idem.idempotency_keys (expires_at, status, scope, key, fingerprint, headers, body)
             SELECT clock_timestamp() + interval '1 day', 201, 'tenant-' || number % 1000, gen_random_uuid()::text,
                    sha256(number::text::bytea), convert_to(E'content-type:application/json\\n', 'UTF8'),
                    convert_to('{{\"id\":' || number || ',\"product\":42,\"quantity\":3}}', 'UTF8')
             FROM generate_series(1, {rows}) AS number"
        ),
    )
    .await?;
    run(pool, "ALTER TABLE idem.idempotency_keys ADD CONSTRAINT idempotency_keys_pkey PRIMARY KEY (scope, key)")
        .await?;
    for index in indexes {
        run(pool, &index).await?;
    }
    // Reads the rows once, as autovacuum would have done: fresh rows have no hint bits yet.
    run(pool, "VACUUM ANALYZE idem.idempotency_keys").await
}
