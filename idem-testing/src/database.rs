//! A database for each test.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};
use std::{process, thread};

use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, PgConnection, PgPool};
use tokio::sync::OnceCell;

use crate::Postgres;

const PREFIX: &str = "idem_test_";

/// The first half of the advisory locks that owners hold on their databases' names ("idem").
const OWNERS: i32 = 0x6964_656d;

/// A database of one test's own, dropped together with this value, also when the test panics.
///
/// The owner holds an advisory lock for as long as it lives. Databases whose owners were killed are dropped by the
/// next process that creates one, on a server that several machines use too.
#[derive(Debug)]
pub struct TestDatabase {
    postgres: Postgres,
    name: String,
    options: PgConnectOptions,
    /// Holds the owner's lock.
    _owner: PgConnection,
}

impl TestDatabase {
    /// Creates an empty database on [`Postgres::shared`].
    ///
    /// # Errors
    /// If the server does not start (the message says what to install) or does not let us create a database.
    pub async fn create() -> Result<Self, sqlx::Error> {
        Self::create_on(&shared().await?).await
    }

    /// Creates an empty database on a given server.
    ///
    /// # Errors
    /// If the server does not answer.
    pub async fn create_on(postgres: &Postgres) -> Result<Self, sqlx::Error> {
        Self::copy_on(postgres, "template1").await
    }

    /// Creates a copy of a database of the same server, for schemas that take long to migrate. Nobody may be connected
    /// to `template`.
    ///
    /// # Errors
    /// If the template does not exist or is in use.
    pub async fn copy_on(postgres: &Postgres, template: &str) -> Result<Self, sqlx::Error> {
        let maintenance: PgConnectOptions = postgres.maintenance_url().parse()?;
        let mut owner = maintenance.connect().await?;
        drop_abandoned_once(&mut owner).await?;
        let name = unique_name();
        sqlx::query("SELECT pg_advisory_lock($1, hashtext($2))").bind(OWNERS).bind(&name).execute(&mut owner).await?;
        let template = template.replace('"', "\"\"");
        let create = format!("CREATE DATABASE {name} TEMPLATE \"{template}\"");
        sqlx::raw_sql(AssertSqlSafe(create)).execute(&mut owner).await?;
        let options = postgres.url(&name).parse()?;
        Ok(Self { postgres: postgres.clone(), name, options, _owner: owner })
    }

    /// The database's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The database's connection URL.
    pub fn url(&self) -> String {
        self.postgres.url(&self.name)
    }

    /// What to connect with.
    pub fn connect_options(&self) -> PgConnectOptions {
        self.options.clone()
    }

    /// The server that it lies on.
    pub fn postgres(&self) -> &Postgres {
        &self.postgres
    }

    /// A new pool of up to ten connections. It connects when first used.
    pub fn pool(&self) -> PgPool {
        self.pool_with(PgPoolOptions::new())
    }

    /// A new pool with other settings. It connects when first used.
    pub fn pool_with(&self, options: PgPoolOptions) -> PgPool {
        options.connect_lazy_with(self.options.clone())
    }
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        let (url, name) = (self.postgres.maintenance_url(), self.name.clone());
        // The test's own runtime may be single-threaded, unwinding or gone.
        let dropped = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let mut connection = PgConnection::connect(&url).await?;
                drop_database(&mut connection, &name).await
            })
        });
        // A test may have stopped its server: then the data goes with it, or the next process sweeps.
        let _ = dropped.join();
    }
}

/// Starting a server blocks, which the other tests of this runtime must not notice.
async fn shared() -> Result<Postgres, sqlx::Error> {
    let started = tokio::task::spawn_blocking(Postgres::shared).await;
    Ok(started.map_err(std::io::Error::other)??)
}

fn unique_name() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let nanoseconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos());
    format!("{PREFIX}{}_{}_{:x}", process::id(), COUNT.fetch_add(1, Ordering::Relaxed), nanoseconds as u64)
}

async fn drop_database(connection: &mut PgConnection, name: &str) -> Result<(), sqlx::Error> {
    let statement = format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)");
    sqlx::raw_sql(AssertSqlSafe(statement)).execute(connection).await.map(drop)
}

async fn drop_abandoned_once(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    static DONE: OnceCell<()> = OnceCell::const_new();
    DONE.get_or_try_init(|| drop_abandoned(connection)).await.map(drop)
}

/// Drops the databases whose owners' locks are free.
async fn drop_abandoned(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    let select = "SELECT datname::text FROM pg_database WHERE starts_with(datname::text, $1)";
    let names: Vec<String> = sqlx::query_scalar(select).bind(PREFIX).fetch_all(&mut *connection).await?;
    for name in names {
        let lock = "SELECT pg_try_advisory_lock($1, hashtext($2))";
        let abandoned: bool = sqlx::query_scalar(lock).bind(OWNERS).bind(&name).fetch_one(&mut *connection).await?;
        if abandoned {
            // Another process may be dropping it too.
            let _ = drop_database(connection, &name).await;
            let unlock = "SELECT pg_advisory_unlock($1, hashtext($2))";
            sqlx::query(unlock).bind(OWNERS).bind(&name).execute(&mut *connection).await?;
        }
    }
    Ok(())
}
