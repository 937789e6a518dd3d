//! Runs several servers over one Postgres under load and breaks everything at random, again and again; then counts.
//!
//! A crash matrix breaks one thing at a known place. Here several things break at once, at places that nobody thought of, for
//! as long as one likes. What must hold at the end is the whole promise: each operation had its effect exactly once if any
//! client got a success and at most once otherwise, all final answers of a key are equal, no key is stuck and no transaction
//! is left open.
//!
//! The seed decides what the clients ask for and what goes wrong when; how the processes' steps fall between is the
//! machine's.

mod arguments;
mod client;
mod faults;
mod fleet;
mod http;
mod ledger;
mod messages;
mod provider;
mod report;
mod server;
mod wire;

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use idem_testing::{Postgres, TestDatabase};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use arguments::{Arguments, Sabotage};
use fleet::Fleet;
use ledger::{Effects, Ledger, Verdict};
use provider::Provider;

type Failure = Box<dyn Error + Send + Sync>;

#[tokio::main]
async fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some("serve") {
        return finish(server::serve().await.map(|()| true));
    }
    match Arguments::parse(std::env::args().skip(1)) {
        Ok(arguments) => finish(soak(arguments).await),
        Err(problem) => {
            eprintln!("{problem}\n\n{}", arguments::USAGE);
            ExitCode::from(2)
        }
    }
}

fn finish(result: Result<bool, Failure>) -> ExitCode {
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failure) => {
            eprintln!("the soak could not run: {failure}");
            ExitCode::from(2)
        }
    }
}

async fn soak(arguments: Arguments) -> Result<bool, Failure> {
    println!("{arguments}");
    let postgres = tokio::task::spawn_blocking(Postgres::private).await??;
    // It holds the database for as long as we run; a restart of Postgres cuts it off, and it is not used.
    let database = TestDatabase::create_on(&postgres).await?;
    let direct = database.pool_with(PgPoolOptions::new().max_connections(4).acquire_timeout(Duration::from_secs(60)));
    server::create_tables(&direct).await?;

    let directory = server::Directory::create()?;
    let provider = Provider::start(directory.path(), arguments.seed)?;
    let fleet = Arc::new(Fleet::start(&arguments, directory.path(), &database.url()).await?);
    let ledger = Arc::new(Ledger::default());

    let begin = Instant::now();
    let (stop, stopped) = watch::channel(false);
    let watching = fleet::watch(&fleet, arguments.seed);
    let clients = client::start(&arguments, &fleet, &ledger, &stopped);
    let faults = faults::start(&arguments, &fleet, &postgres, &stopped);
    while begin.elapsed() < arguments.length {
        sleep(Duration::from_secs(5).min(arguments.length - begin.elapsed())).await;
        report::progress(begin.elapsed(), &ledger, &fleet);
    }
    stop.send_replace(true);

    let faults = faults.await?;
    fleet.settle().await?;
    for client in clients {
        client.await?;
    }
    let mut verdict = Verdict::default();
    // Some clients went away for good: their operations may or may not have happened, but not twice.
    let before = effects(&direct, &provider).await?;
    verdict.add(ledger.violations(&before));
    client::finish_abandoned(&arguments, &fleet, &ledger).await;
    until_nothing_is_pending(&direct).await?;
    watching.abort();
    sabotage(arguments.sabotage, &direct, &ledger, &provider).await?;
    let (outbox, received) = (messages::outbox(&direct).await?, provider.received());
    verdict.messages = messages::totals(&outbox, &received);
    verdict.add(messages::violations(&outbox, &received, &effects(&direct, &provider).await?.orders));
    verdict.add(ledger.violations(&effects(&direct, &provider).await?));
    verdict.add(ledger.stuck());
    verdict.add(open_transactions(&direct).await?);
    report::summary(&arguments, begin.elapsed(), &ledger, &faults, &provider, &fleet, &verdict);
    fleet.stop().await;
    if !verdict.holds() {
        println!("the servers' logs are kept in {}", directory.keep().display());
    }
    Ok(verdict.holds())
}

async fn effects(pool: &PgPool, provider: &Provider) -> Result<Effects, Failure> {
    let count = async |sql: &'static str| -> Result<_, Failure> {
        let counts: Vec<(i64, i64)> = sqlx::query_as(sql).fetch_all(pool).await?;
        Ok(counts.into_iter().map(|(operation, count)| (operation as u64, count as u64)).collect())
    };
    Ok(Effects {
        orders: count("SELECT operation, count(*) FROM orders GROUP BY operation").await?,
        reservations: count("SELECT operation, count(*) FROM reservations GROUP BY operation").await?,
        confirmations: count("SELECT operation, count(*) FROM confirmations GROUP BY operation").await?,
        charges: provider.charges(),
    })
}

/// Pauses between attempts double up to half a minute, and some attempts end a process.
async fn until_nothing_is_pending(pool: &PgPool) -> Result<(), Failure> {
    let deadline = Instant::now() + Duration::from_secs(180);
    while messages::pending(pool).await? > 0 && Instant::now() < deadline {
        sleep(Duration::from_millis(200)).await;
    }
    Ok(())
}

/// What nobody works at any more must not stay open. Leases and idle time-outs have had their time.
async fn open_transactions(pool: &PgPool) -> Result<Vec<String>, Failure> {
    let open = "SELECT format('%s since %s: %s', state, now() - xact_start, left(query, 80)) FROM pg_stat_activity \
                WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend' \
                  AND state <> 'idle' \
                UNION ALL SELECT format('advisory lock of %s', pid) FROM pg_locks \
                WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) \
                UNION ALL SELECT format('prepared transaction %s', gid) FROM pg_prepared_xacts \
                UNION ALL SELECT format('operation in progress: %s', key) FROM idem.idempotency_keys WHERE status IS NULL";
    let deadline = Instant::now() + server::LEASE * 2 + Duration::from_secs(10);
    loop {
        let found: Vec<String> = sqlx::query_scalar(open).fetch_all(pool).await?;
        if found.is_empty() || Instant::now() > deadline {
            return Ok(found.into_iter().map(|found| format!("left open: {found}")).collect());
        }
        sleep(Duration::from_millis(200)).await;
    }
}

/// Falsifies what happened: the check must notice.
async fn sabotage(
    sabotage: Option<Sabotage>,
    pool: &PgPool,
    ledger: &Ledger,
    provider: &Provider,
) -> Result<(), Failure> {
    let operation = ledger.any_successful_order().map(u64::cast_signed);
    match (sabotage, operation) {
        (Some(Sabotage::ExtraRow), Some(operation)) => {
            sqlx::query("INSERT INTO orders (operation) VALUES ($1)").bind(operation).execute(pool).await?;
        }
        (Some(Sabotage::MissingRow), Some(operation)) => {
            sqlx::query("DELETE FROM orders WHERE operation = $1").bind(operation).execute(pool).await?;
        }
        (Some(Sabotage::LostMessage), Some(operation)) => {
            provider.forge(|received| received.forget(operation.cast_unsigned()));
        }
        (Some(Sabotage::RepeatedMessage), Some(operation)) => {
            provider.forge(|received| received.repeat(operation.cast_unsigned()));
        }
        (Some(Sabotage::SwappedMessages), _) => provider.forge(messages::Received::swap),
        (Some(Sabotage::OtherAnswer), Some(operation)) => ledger.forge_answer(operation.cast_unsigned()),
        (Some(Sabotage::OpenTransaction), _) => {
            let mut transaction = pool.begin().await?;
            sqlx::query("SELECT pg_advisory_xact_lock(1)").execute(&mut *transaction).await?;
            // Forgotten on purpose.
            std::mem::forget(transaction);
        }
        _ => {}
    }
    Ok(())
}
