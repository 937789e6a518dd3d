//! Connections of the pool, and how long a server may take to answer: a network that swallows messages never says so.

use std::io;
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::postgres::PgArguments;
#[cfg(feature = "axum")]
use sqlx::postgres::PgRow;
use sqlx::query::Query;
use sqlx::{Connection, Executor, PgConnection, Postgres, SqlStr};
use tokio::time::timeout;
use tracing::dispatcher::{Dispatch, get_default};
use tracing::instrument::WithSubscriber;
use tracing::subscriber::NoSubscriber;

use super::sqlstate::{self, Answer};
use crate::error::Error;
use crate::idempotency::Idempotency;

impl Idempotency {
    /// A connection of the pool, within the time a request may wait for one.
    pub(crate) async fn connection(&self) -> Result<PoolConnection<Postgres>, Error> {
        // Boxed: connecting makes it a future of kilobytes, which every request would carry along.
        match timeout(self.settings().connection_timeout, Box::pin(self.pool().acquire())).await {
            Ok(acquired) => acquired.map_err(|error| self.unavailable(error)),
            Err(_) => Err(self.unavailable(sqlx::Error::PoolTimedOut)),
        }
    }

    /// A connection for what can be sent again on another one. Where the builder allows it, it comes without the pool's
    /// checks, which saves a round trip, and may have died unnoticed.
    pub(crate) async fn connection_to_repeat_on(&self) -> Result<PoolConnection<Postgres>, Error> {
        let idle = if self.settings().pool_checks { None } else { self.pool().try_acquire() };
        match idle {
            Some(connection) => Ok(connection),
            None => self.connection().await,
        }
    }

    /// Executes a statement of ours that is a transaction of its own; how many rows it touched.
    pub(crate) async fn execute<'q>(
        &self,
        mut connection: PoolConnection<Postgres>,
        statement: impl Fn() -> Query<'q, Postgres, PgArguments>,
    ) -> sqlx::Result<u64> {
        let limit = self.settings().connection_timeout;
        let executed = match within(limit, statement().execute(&mut *connection)).await {
            Err(error) if sqlstate::answer(&error) == Answer::ReadOnly => {
                // Whether it is the database's default or a replica's word: the pool is better off without it.
                connection.close_on_drop();
                let executed = within(limit, execute_read_write(&mut connection, statement())).await;
                executed.map_err(|again| refused_by_a_replica(error, again))
            }
            executed => executed.map(|executed| executed.rows_affected()),
        };
        executed.inspect_err(|error| close_if_lost(&mut connection, error))
    }

    /// The same for a statement that gives rows back.
    #[cfg(feature = "axum")]
    pub(crate) async fn execute_returning<'q>(
        &self,
        mut connection: PoolConnection<Postgres>,
        statement: impl Fn() -> Query<'q, Postgres, PgArguments>,
    ) -> sqlx::Result<Vec<PgRow>> {
        let limit = self.settings().connection_timeout;
        let rows = match within(limit, statement().fetch_all(&mut *connection)).await {
            Err(error) if sqlstate::answer(&error) == Answer::ReadOnly => {
                // Whether it is the database's default or a replica's word: the pool is better off without it.
                connection.close_on_drop();
                let rows = within(limit, fetch_read_write(&mut connection, statement())).await;
                rows.map_err(|again| refused_by_a_replica(error, again))
            }
            rows => rows,
        };
        rows.inspect_err(|error| close_if_lost(&mut connection, error))
    }

    /// What to answer after an error of a statement that changed nothing.
    pub(crate) fn not_executed(&self, error: sqlx::Error) -> Error {
        match sqlstate::answer(&error) {
            Answer::Refused => Error::Database(error),
            Answer::Conflict => self.conflict(Some(error)),
            Answer::ReadOnly | Answer::Unknown => self.unavailable(error),
        }
    }
}

/// Where transactions are read-only unless they say otherwise. A server that has become a replica refuses this, too.
async fn execute_read_write(
    connection: &mut PgConnection,
    statement: Query<'_, Postgres, PgArguments>,
) -> sqlx::Result<u64> {
    let mut transaction = connection.begin_with("BEGIN READ WRITE").await?;
    let executed = statement.execute(&mut *transaction).await?;
    transaction.commit().await?;
    Ok(executed.rows_affected())
}

/// A replica has no mode in which it writes, and says so with another code: the first error is what there is to say about it.
fn refused_by_a_replica(first: sqlx::Error, again: sqlx::Error) -> sqlx::Error {
    if sqlstate::is_elsewhere(&again) { first } else { again }
}

#[cfg(feature = "axum")]
async fn fetch_read_write(
    connection: &mut PgConnection,
    statement: Query<'_, Postgres, PgArguments>,
) -> sqlx::Result<Vec<PgRow>> {
    let mut transaction = connection.begin_with("BEGIN READ WRITE").await?;
    let rows = statement.fetch_all(&mut *transaction).await?;
    transaction.commit().await?;
    Ok(rows)
}

/// A connection that was given up in the middle of a statement, or whose server takes no writes any more, must not go back to the
/// pool.
pub(crate) fn close_if_lost(connection: &mut PoolConnection<Postgres>, error: &sqlx::Error) {
    if sqlstate::is_lost(error) {
        connection.close_on_drop();
    }
}

/// An answer of the server, or the error of a broken connection. Whoever gets that must not use the connection again.
pub(crate) async fn within<T>(limit: Duration, answer: impl Future<Output = sqlx::Result<T>>) -> sqlx::Result<T> {
    timeout(limit, answer).await.unwrap_or_else(|_| Err(sqlx::Error::Io(io::ErrorKind::TimedOut.into())))
}

/// Sends commands in the simple protocol, in one round trip.
pub(crate) async fn send(connection: &mut PgConnection, limit: Duration, commands: SqlStr) -> sqlx::Result<()> {
    within(limit, unlogged(connection.execute(sqlx::raw_sql(commands)))).await.map(drop)
}

/// sqlx logs a slow statement whole, as a warning, and these hold keys and bodies.
///
/// Without a subscriber of `tracing` nothing is silenced: a scoped one would switch off the events that `tracing` then hands
/// to the `log` crate, for the whole process and for good.
pub(crate) async fn unlogged<F: Future>(statement: F) -> F::Output {
    if get_default(Dispatch::is::<NoSubscriber>) {
        statement.await
    } else {
        statement.with_subscriber(Dispatch::none()).await
    }
}
