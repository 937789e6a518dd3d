//! The handler gets the claim's own transaction, and no way to end it: claim, writes and response stand or fall as one.

use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, TryFutureExt};
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgQueryResult, PgRow, PgStatement, PgTransactionManager, PgTypeInfo};
use sqlx::{Acquire, Describe, Either, Execute, Executor, PgConnection, Postgres, SqlStr};
use sqlx_core::transaction::TransactionManager;
use tokio::time::timeout;
use tracing::dispatcher::{Dispatch, get_default};
use tracing::instrument::WithSubscriber;
use tracing::subscriber::NoSubscriber;

use crate::idempotency::Idempotency;
use crate::key::IdempotencyKey;

/// The transaction that the claim, the handler's writes and the stored response share.
///
/// `&mut Tx` is an [`sqlx::Executor`], and a `Tx` derefs to [`PgConnection`]: queries, savepoints (`tx.begin()`) and
/// `LISTEN`-free SQL of every kind work. It has no `commit` and no `rollback`: the runtime commits with the response
/// when the handler returns 2xx or 3xx, and rolls back otherwise.
///
/// A helper takes `&mut Tx` or `&mut PgConnection`, which `tx` becomes by itself. One that takes
/// `&mut Transaction<'_, Postgres>` does not fit: only the runtime ends this transaction.
///
/// ```
/// # use idem_runtime::Tx;
/// async fn reserve(tx: &mut Tx, product: i64) -> Result<bool, sqlx::Error> {
///     let reserved = sqlx::query("UPDATE products SET stock = stock - 1 WHERE id = $1 AND stock > 0")
///         .bind(product)
///         .execute(&mut *tx)
///         .await?;
///     Ok(reserved.rows_affected() == 1)
/// }
/// ```
pub struct Tx {
    connection: PoolConnection<Postgres>,
    idempotency: Idempotency,
    key: IdempotencyKey,
    conflict: bool,
    /// How long the server may take over a statement of ours: a network that swallows messages never says so.
    patience: Duration,
    /// The look-up saw a row whose retention is over: the outcome makes room for itself.
    pub(crate) replaces_expired: bool,
    /// Whether the pool may have the connection back: not before its transaction has ended for certain.
    reusable: bool,
}

impl Tx {
    /// Sends `statement`, which begins a transaction and may do more. The server ends it when it sits idle for `lease`.
    pub(crate) async fn begin(
        idempotency: &Idempotency,
        connection: PoolConnection<Postgres>,
        key: IdempotencyKey,
        statement: SqlStr,
        lease: Duration,
    ) -> sqlx::Result<Self> {
        let limit = idempotency.settings().connection_timeout;
        let mut tx = Self {
            connection,
            idempotency: idempotency.clone(),
            key,
            conflict: false,
            patience: lease.saturating_add(limit),
            replaces_expired: false,
            reusable: false,
        };
        within(limit, PgTransactionManager::begin(&mut tx.connection, Some(statement))).await?;
        Ok(tx)
    }

    /// The request's idempotency key. Where `key = optional` found none, a random one for this execution.
    #[must_use]
    pub fn key(&self) -> &IdempotencyKey {
        &self.key
    }

    pub(crate) fn idempotency(&self) -> &Idempotency {
        &self.idempotency
    }

    /// Whether Postgres ended a statement of the handler because of a concurrent transaction (40001, 40P01).
    pub(crate) fn met_conflict(&self) -> bool {
        self.conflict
    }

    /// Whether the handler left every savepoint that it entered.
    pub(crate) fn is_outermost(&self) -> bool {
        PgTransactionManager::get_transaction_depth(&self.connection) == 1
    }

    /// Sends commands in the simple protocol, in one round trip.
    pub(crate) async fn send(&mut self, commands: SqlStr) -> sqlx::Result<()> {
        within(self.patience, unlogged(sqlx::raw_sql(commands).execute(&mut *self.connection))).await.map(drop)
    }

    /// When it returns, the key is free; if the server does not answer, as soon as it notices that we are gone.
    pub(crate) async fn roll_back(mut self) {
        if self.is_outermost() {
            let rollback = PgTransactionManager::rollback(&mut self.connection);
            self.reusable = within(self.patience, rollback).await.is_ok();
        } else {
            // Frees the key at once; the connection, whose depth is beyond repair, is closed by the drop.
            let _ = self.send(crate::postgres::statements::rollback()).await;
        }
    }

    /// Gives the connection back while nothing that matters is open: the rollback travels with the pool's ping, after
    /// the answer.
    pub(crate) fn finish(mut self) {
        if self.is_outermost() {
            PgTransactionManager::start_rollback(&mut self.connection);
            self.reusable = true;
        }
    }
}

impl Drop for Tx {
    fn drop(&mut self) {
        if !self.reusable {
            self.connection.close_on_drop();
        }
    }
}

impl fmt::Debug for Tx {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Tx").field("key", &self.key).finish_non_exhaustive()
    }
}

impl Deref for Tx {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.connection
    }
}

impl DerefMut for Tx {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.connection
    }
}

/// An answer of the server, or the error of a broken connection. Whoever gets that must not use the connection again.
pub(crate) async fn within<T>(limit: Duration, answer: impl Future<Output = sqlx::Result<T>>) -> sqlx::Result<T> {
    timeout(limit, answer).await.unwrap_or_else(|_| Err(sqlx::Error::Io(io::ErrorKind::TimedOut.into())))
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

/// 40001 and 40P01: the transaction lost to a concurrent one, and a retry may win.
pub(crate) fn is_conflict(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code());
    matches!(code.as_deref(), Some("40001" | "40P01"))
}

impl<'c> Executor<'c> for &'c mut Tx {
    type Database = Postgres;

    fn fetch_many<'e, 'q: 'e, E>(self, query: E) -> BoxStream<'e, sqlx::Result<Either<PgQueryResult, PgRow>>>
    where
        'c: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        let Tx { connection, conflict, .. } = self;
        let results = (&mut **connection).fetch_many(query);
        results.inspect(|result| *conflict |= result.as_ref().is_err_and(is_conflict)).boxed()
    }

    fn fetch_optional<'e, 'q: 'e, E>(self, query: E) -> BoxFuture<'e, sqlx::Result<Option<PgRow>>>
    where
        'c: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        let Tx { connection, conflict, .. } = self;
        let row = (&mut **connection).fetch_optional(query);
        Box::pin(row.inspect_err(|error| *conflict |= is_conflict(error)))
    }

    fn prepare_with<'e>(self, sql: SqlStr, parameters: &'e [PgTypeInfo]) -> BoxFuture<'e, sqlx::Result<PgStatement>>
    where
        'c: 'e,
    {
        (&mut **self).prepare_with(sql, parameters)
    }

    fn describe<'e>(self, sql: SqlStr) -> BoxFuture<'e, sqlx::Result<Describe<Postgres>>>
    where
        'c: 'e,
    {
        (&mut **self).describe(sql)
    }
}

impl<'c> Acquire<'c> for &'c mut Tx {
    type Database = Postgres;
    type Connection = &'c mut PgConnection;

    fn acquire(self) -> BoxFuture<'c, sqlx::Result<&'c mut PgConnection>> {
        Box::pin(std::future::ready(Ok(&mut **self)))
    }

    fn begin(self) -> BoxFuture<'c, sqlx::Result<sqlx::Transaction<'c, Postgres>>> {
        Acquire::begin(&mut **self)
    }
}
