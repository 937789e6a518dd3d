//! The Postgres that everything is measured on: a server of its own, with `fsync` on.

use idem_runtime::Idempotency;
use idem_testing::{Postgres, TestDatabase};
use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, PgPool};

use crate::Result;
use crate::application::{self, Application};

/// As many connections as a pool of sqlx has by default.
pub const CONNECTIONS: u32 = 10;

/// A durable server of the measurement's own.
#[derive(Debug)]
pub struct Stage {
    postgres: Postgres,
}

impl Stage {
    /// Starts the server, with settings beside the defaults.
    ///
    /// # Errors
    /// If no Postgres is installed or it does not start.
    pub async fn open(settings: &[(&str, &str)]) -> Result<Self> {
        let mut options = Postgres::options().durable();
        for (name, value) in settings {
            options = options.setting(name, value);
        }
        let postgres = tokio::task::spawn_blocking(|| options.start()).await??;
        Ok(Self { postgres })
    }

    /// An empty database with the application's and the runtime's tables.
    ///
    /// # Errors
    /// If the server does not let us.
    pub async fn database(&self) -> Result<TestDatabase> {
        let database = TestDatabase::create_on(&self.postgres).await?;
        let pool = database.pool_with(PgPoolOptions::new().max_connections(1));
        application::create_tables(&pool).await?;
        Idempotency::new(pool.clone()).migrate().await?;
        pool.close().await;
        Ok(database)
    }

    /// The application over a database of its own, with a pool of [`CONNECTIONS`].
    ///
    /// # Errors
    /// As [`database`](Self::database).
    pub async fn application(&self) -> Result<(TestDatabase, Application)> {
        let database = self.database().await?;
        let pool = database.pool_with(PgPoolOptions::new().max_connections(CONNECTIONS));
        Ok((database, Application::over(pool)))
    }
}

/// How much was written to the write-ahead log so far, in bytes.
///
/// # Errors
/// If the server does not answer.
pub async fn wal_position(pool: &PgPool) -> Result<i64> {
    let select = "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint";
    Ok(sqlx::query_scalar(select).fetch_one(pool).await?)
}

/// A single number from a statement of ours.
///
/// # Errors
/// If the statement fails.
pub async fn number(pool: &PgPool, statement: &str) -> Result<i64> {
    Ok(sqlx::query_scalar(AssertSqlSafe(statement.to_owned())).fetch_one(pool).await?)
}

/// Runs statements of ours in the simple protocol.
///
/// # Errors
/// If one fails.
pub async fn run(pool: &PgPool, statements: &str) -> Result<()> {
    sqlx::raw_sql(AssertSqlSafe(statements.to_owned())).execute(pool).await?;
    Ok(())
}
