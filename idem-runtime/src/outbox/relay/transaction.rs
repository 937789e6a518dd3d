//! A transaction of the outbox's own, on a connection of the pool.

use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgArguments, PgRow, PgTransactionManager};
use sqlx::query::Query;
use sqlx::{Postgres, SqlSafeStr};
use sqlx_core::transaction::TransactionManager;

use crate::error::Error;
use crate::idempotency::Idempotency;
use crate::outbox::statements::BEGIN;
use crate::postgres::connection::{unlogged, within};

/// One that is dropped before it is committed takes its connection with it: it may stand in the middle of an answer.
pub(in crate::outbox) struct Transaction<'a> {
    idempotency: &'a Idempotency,
    connection: PoolConnection<Postgres>,
    reusable: bool,
}

impl<'a> Transaction<'a> {
    pub(in crate::outbox) async fn begin(idempotency: &'a Idempotency) -> Result<Self, Error> {
        let connection = idempotency.connection().await?;
        let mut transaction = Self { idempotency, connection, reusable: false };
        let limit = idempotency.settings().connection_timeout;
        let begin = PgTransactionManager::begin(&mut transaction.connection, Some(BEGIN.into_sql_str()));
        within(limit, begin).await.map_err(|error| idempotency.not_executed(error))?;
        Ok(transaction)
    }

    pub(in crate::outbox) async fn rows(
        &mut self,
        statement: Query<'_, Postgres, PgArguments>,
    ) -> Result<Vec<PgRow>, Error> {
        let limit = self.idempotency.settings().connection_timeout;
        let rows = within(limit, unlogged(statement.fetch_all(&mut *self.connection))).await;
        rows.map_err(|error| self.idempotency.not_executed(error))
    }

    pub(in crate::outbox) async fn execute(
        &mut self,
        statement: Query<'_, Postgres, PgArguments>,
    ) -> Result<u64, Error> {
        let limit = self.idempotency.settings().connection_timeout;
        let executed = within(limit, unlogged(statement.execute(&mut *self.connection))).await;
        executed.map(|executed| executed.rows_affected()).map_err(|error| self.idempotency.not_executed(error))
    }

    pub(in crate::outbox) async fn commit(mut self) -> Result<(), Error> {
        let limit = self.idempotency.settings().connection_timeout;
        let committed = within(limit, PgTransactionManager::commit(&mut self.connection)).await;
        committed.map_err(|error| self.idempotency.not_executed(error))?;
        self.reusable = true;
        Ok(())
    }
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        if !self.reusable {
            self.connection.close_on_drop();
        }
    }
}

/// The answer to a statement that is a transaction of its own.
pub(super) async fn rows(
    idempotency: &Idempotency,
    connection: &mut PoolConnection<Postgres>,
    statement: Query<'_, Postgres, PgArguments>,
) -> Result<Vec<PgRow>, Error> {
    let limit = idempotency.settings().connection_timeout;
    let rows = within(limit, unlogged(statement.fetch_all(&mut **connection))).await;
    rows.inspect_err(|_| connection.close_on_drop()).map_err(|error| idempotency.not_executed(error))
}
