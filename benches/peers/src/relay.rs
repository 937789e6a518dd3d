//! Awa: jobs that are enqueued in the transaction of what they are about, delivered to a worker in this process.

use std::time::{Duration, Instant};

use awa::{Client, InsertOpts, JobArgs, JobError, JobResult, QueueConfig};
use idem_benches::Result;
use idem_benches::deliveries::{
    LIMIT, Measured, Producer, Receiver, Size, order_as_fast_as_possible, order_steadily, pick_up,
};
use idem_benches::stage::CONNECTIONS;
use peers_sqlx::PgPool;
use peers_sqlx::postgres::PgPoolOptions;
use serde::{Deserialize, Serialize};

const QUEUE: &str = "order";

#[derive(Debug, Serialize, Deserialize, JobArgs)]
struct AnnounceOrder {
    number: i64,
}

fn options() -> InsertOpts {
    InsertOpts { queue: QUEUE.to_owned(), ..InsertOpts::default() }
}

#[derive(Clone)]
struct Shop(PgPool);

impl Producer for Shop {
    async fn order(&self, number: i64) -> Result<()> {
        let mut transaction = self.0.begin().await?;
        let insert = "INSERT INTO orders (tenant, product, quantity) VALUES ('tenant-1', $1, 3)";
        peers_sqlx::query(insert).bind(number).execute(&mut *transaction).await?;
        awa::insert_with(&mut *transaction, &AnnounceOrder { number }, options()).await?;
        transaction.commit().await?;
        Ok(())
    }
}

async fn start(pool: &PgPool, receiver: &Receiver) -> Result<Client> {
    let receiver = receiver.clone();
    let client = Client::builder(pool.clone())
        .queue(QUEUE, QueueConfig { max_workers: LIMIT, ..QueueConfig::default() })
        .register::<AnnounceOrder, _, _>(move |order, _| {
            let receiver = receiver.clone();
            async move {
                receiver.receive(order.number).await;
                Ok::<_, JobError>(JobResult::Completed)
            }
        })
        .build()?;
    client.start().await?;
    Ok(client)
}

/// `relay <quick|full> <url>`: the last line is what was measured, as JSON.
pub(crate) async fn measure(size: Size, url: &str) -> Result<()> {
    // Its dispatcher, its heartbeats and its maintenance take connections too.
    let pool = PgPoolOptions::new().max_connections(CONNECTIONS + 10).connect(url).await?;
    let direct = PgPoolOptions::new().max_connections(1).connect(url).await?;
    awa::migrations::run(&direct).await?;
    let receiver = Receiver::default();
    println!("awa: a backlog");
    for part in (0..size.backlog.cast_signed()).collect::<Vec<_>>().chunks(1_000) {
        let jobs =
            part.iter().map(|number| awa::model::insert::params_with(&AnnounceOrder { number: *number }, options()));
        awa::insert_many(&direct, &jobs.collect::<std::result::Result<Vec<_>, _>>()?).await?;
    }
    peers_sqlx::raw_sql("VACUUM ANALYZE").execute(&direct).await?;
    peers_sqlx::raw_sql("CHECKPOINT").execute(&direct).await?;
    let before = (transactions(&direct).await?, wal_position(&direct).await?);
    let begin = Instant::now();
    let client = start(&pool, &receiver).await?;
    receiver.until(size.backlog).await?;
    let drained = size.backlog as f64 / begin.elapsed().as_secs_f64();
    client.shutdown(Duration::from_secs(30)).await;
    let wal_bytes = (wal_position(&direct).await? - before.1) as f64 / size.backlog as f64;
    let commits = (transactions(&direct).await? - before.0) as f64 / size.backlog as f64;

    println!("awa: one by one");
    let shop = Shop(pool.clone());
    let client = start(&pool, &receiver).await?;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let pick_up = pick_up(&shop, &receiver, size.picked_up).await?;

    println!("awa: as fast as they come");
    let before = receiver.count();
    let begin = Instant::now();
    let made = order_as_fast_as_possible(&shop, size.crowded).await?;
    let ordered = made as f64 / begin.elapsed().as_secs_f64();
    let behind = made - (receiver.count() - before);
    receiver.until(before + made).await?;

    println!("awa: at a steady rate");
    let dead = "SELECT coalesce(sum(n_dead_tup), 0)::bigint FROM pg_stat_user_tables \
                     WHERE schemaname LIKE 'awa%'";
    let ask = async || Ok(peers_sqlx::query_scalar(dead).fetch_one(&direct).await?);
    let dead_rows = order_steadily(&shop, size.steady, ask).await?;
    client.shutdown(Duration::from_secs(30)).await;
    let measured = Measured { drained, commits, wal_bytes, pick_up, ordered, behind, dead_rows };
    println!("{}", serde_json::to_string(&measured)?);
    Ok(())
}

async fn transactions(pool: &PgPool) -> Result<i64> {
    // Sessions report what they did a second later at the latest.
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    let select = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()";
    Ok(peers_sqlx::query_scalar(select).fetch_one(pool).await?)
}

async fn wal_position(pool: &PgPool) -> Result<i64> {
    let select = "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint";
    Ok(peers_sqlx::query_scalar(select).fetch_one(pool).await?)
}
