//! The handler gets the claim's own transaction, and no way to end it: claim, writes and response stand or fall as one.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::panic::resume_unwind;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use futures_util::{FutureExt, StreamExt, TryFutureExt, TryStreamExt};
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgQueryResult, PgRow, PgStatement, PgTransactionManager, PgTypeInfo};
use sqlx::{Acquire, Connection, Describe, Either, Execute, Executor, PgConnection, Postgres, SqlStr};
use sqlx_core::transaction::TransactionManager;

use super::connection::{self, within};
use super::sqlstate::{is_conflict, is_lost, shows_lost_server};
use super::statements::{Isolation, Mark};
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
///
/// # Conflicts
///
/// A transaction that loses to a concurrent one (SQLSTATE 40001, 40P01) is answered with 503 and `Retry-After`, and nothing is
/// stored, whatever the handler makes of the error. It is seen
///
/// - in statements over `&mut *tx`, as above;
/// - in the error that the handler returns, where its type is a [`std::error::Error`] whose [`source`](std::error::Error::source)
///   leads to the [`sqlx::Error`];
/// - in the commit.
///
/// It is **not** seen where a helper takes `&mut PgConnection` (or a savepoint) and its error is turned into a status or a text:
/// then a 4xx made of it is stored like any other refusal. Let such helpers take `&mut Tx`, or let the error come out.
///
/// # The end
///
/// The transaction ends when the handler has returned. A helper that ends it before, with `COMMIT` or `ROLLBACK` in its SQL, makes
/// the operation's effects unknown: see [`Error::EffectsUnknown`](crate::Error::EffectsUnknown). Where sqlx itself has ended it (a
/// savepoint was begun in a transaction that a swallowed error had aborted), each further statement fails, and a `&mut PgConnection`
/// is not given out any more: the handler is stopped there as by a panic.
pub struct Tx {
    connection: PoolConnection<Postgres>,
    idempotency: Idempotency,
    key: IdempotencyKey,
    /// For the log.
    handler: &'static str,
    mark: Mark,
    seen: Seen,
    /// Whether the handler has had the connection in its hands.
    used: bool,
    /// A COPY was dropped midway: sqlx takes each answer from now on for the one before.
    out_of_step: bool,
    /// How long the server may take over a statement of ours.
    statement_timeout: Duration,
    /// Whether the pool may have the connection back: not before its transaction has ended for certain.
    reusable: bool,
}

/// What the handler's statements have shown.
#[derive(Default)]
struct Seen {
    /// Postgres ended one of them because of a concurrent transaction (40001, 40P01).
    conflict: bool,
    /// The connection is lost, or a pooler has lost the server behind it: what runs on it next may run on another server, in no
    /// transaction at all.
    lost: Option<String>,
}

impl Seen {
    fn note(&mut self, error: &sqlx::Error) {
        self.conflict |= is_conflict(error);
        if shows_lost_server(error) {
            self.lost.get_or_insert_with(|| error.to_string());
        }
    }
}

/// How the transaction of a claim is begun.
pub(crate) struct Begin {
    pub(crate) handler: &'static str,
    pub(crate) key: IdempotencyKey,
    pub(crate) mark: Mark,
    pub(crate) isolation: Option<Isolation>,
    pub(crate) lease: Duration,
    /// Whether its commit must survive a crash of the server, whatever the database's default.
    pub(crate) durable: bool,
}

/// What unwinds from a handler that is stopped because its transaction has ended.
pub(crate) struct Stopped;

impl Tx {
    pub(crate) async fn begin(
        idempotency: &Idempotency,
        connection: PoolConnection<Postgres>,
        begin: &Begin,
    ) -> sqlx::Result<Self> {
        let limit = idempotency.settings().connection_timeout;
        let statement = idempotency.statements().begin(&begin.mark, begin.isolation, begin.lease, begin.durable);
        let mut tx = Self {
            connection,
            idempotency: idempotency.clone(),
            key: begin.key.clone(),
            handler: begin.handler,
            mark: begin.mark.clone(),
            seen: Seen::default(),
            used: false,
            out_of_step: false,
            statement_timeout: begin.lease.saturating_add(limit),
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

    pub(crate) fn handler(&self) -> &'static str {
        self.handler
    }

    /// What the transaction was marked with when it began.
    pub(crate) fn mark(&self) -> &Mark {
        &self.mark
    }

    /// Whether Postgres ended a statement of the handler because of a concurrent transaction (40001, 40P01).
    pub(crate) fn met_conflict(&self) -> bool {
        self.seen.conflict
    }

    /// The error of a connection that a statement of the handler has lost.
    pub(crate) fn lost_connection(&self) -> Option<sqlx::Error> {
        let cause = self.seen.lost.as_ref()?;
        Some(sqlx::Error::Protocol(format!("the connection was lost in the handler: {cause}")))
    }

    /// The handler has returned an error that says so.
    pub(crate) fn note_conflict(&mut self) {
        self.seen.conflict = true;
    }

    /// Whether the handler has used the connection at all.
    pub(crate) fn was_used(&self) -> bool {
        self.used
    }

    /// How many transactions and savepoints sqlx takes to be open: 1 before the handler and after a tidy one, 0 when it has ended
    /// the transaction.
    pub(crate) fn depth(&self) -> usize {
        PgTransactionManager::get_transaction_depth(&self.connection)
    }

    /// Whether nothing has been sent since sqlx ended the transaction: its ROLLBACK waits for the next statement.
    pub(crate) fn has_unsent_rollback(&self) -> bool {
        self.depth() == 0 && self.connection.should_flush()
    }

    /// Fetches the row of a statement of ours.
    pub(crate) async fn fetch_one(
        &mut self,
        statement: sqlx::query::Query<'_, Postgres, sqlx::postgres::PgArguments>,
    ) -> sqlx::Result<PgRow> {
        let limit = self.idempotency.settings().connection_timeout;
        within(limit, (&mut *self.connection).fetch_one(statement)).await
    }

    /// Sends commands of ours in the simple protocol, in one round trip.
    pub(crate) async fn send(&mut self, commands: SqlStr) -> sqlx::Result<()> {
        let sent = connection::send(&mut self.connection, self.statement_timeout, commands).await;
        self.out_of_step |= sent.as_ref().is_err_and(is_of_dropped_copy);
        sent
    }

    pub(crate) fn is_out_of_step(&self) -> bool {
        self.out_of_step
    }

    /// Waits for what the handler has sent and not awaited, so that no answer to it is taken for an answer to us.
    pub(crate) async fn drain(&mut self) -> sqlx::Result<()> {
        loop {
            match within(self.statement_timeout, self.connection.flush()).await {
                Ok(()) => return Ok(()),
                Err(error) if is_lost(&error) => return Err(error),
                // Each is the answer to one statement, so it comes to an end.
                Err(error) => self.seen.note(&error),
            }
        }
    }

    /// Gives the connection back while nothing that matters is open: the rollback travels with the pool's ping, after
    /// the answer.
    pub(crate) fn finish(mut self) {
        if self.depth() == 1 && self.seen.lost.is_none() && !self.out_of_step {
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
    /// There is no connection to give out after the end, and no error to return: what runs on it would be committed at once.
    fn deref_mut(&mut self) -> &mut PgConnection {
        self.used = true;
        if self.has_ended() {
            resume_unwind(Box::new(Stopped));
        }
        &mut self.connection
    }
}

impl Tx {
    /// Whether another statement would run outside of the transaction that was begun.
    fn has_ended(&self) -> bool {
        self.depth() == 0 || self.seen.lost.is_some()
    }

    /// The connection, as long as the transaction lasts.
    fn open(&mut self) -> sqlx::Result<(&mut PgConnection, &mut Seen)> {
        self.used = true;
        if let Some(lost) = self.lost_connection() {
            return Err(lost);
        }
        if self.has_ended() {
            return Err(ended());
        }
        Ok((&mut self.connection, &mut self.seen))
    }
}

/// What sqlx has the server say when a COPY of the handler's was neither finished nor failed.
fn is_of_dropped_copy(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(|error| error.message().contains("PgCopyIn dropped"))
}

fn ended() -> sqlx::Error {
    sqlx::Error::Protocol(
        "the transaction has ended: a savepoint was begun after a statement had failed; return the first error instead"
            .to_owned(),
    )
}

impl<'c> Executor<'c> for &'c mut Tx {
    type Database = Postgres;

    fn fetch_many<'e, 'q: 'e, E>(self, query: E) -> BoxStream<'e, sqlx::Result<Either<PgQueryResult, PgRow>>>
    where
        'c: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        match self.open() {
            Ok((connection, seen)) => {
                let results = connection.fetch_many(query);
                results.inspect_err(|error| seen.note(error)).boxed()
            }
            Err(error) => futures_util::stream::once(std::future::ready(Err(error))).boxed(),
        }
    }

    fn fetch_optional<'e, 'q: 'e, E>(self, query: E) -> BoxFuture<'e, sqlx::Result<Option<PgRow>>>
    where
        'c: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        match self.open() {
            Ok((connection, seen)) => {
                let row = connection.fetch_optional(query);
                row.inspect_err(|error| seen.note(error)).boxed()
            }
            Err(error) => std::future::ready(Err(error)).boxed(),
        }
    }

    fn prepare_with<'e>(self, sql: SqlStr, parameters: &'e [PgTypeInfo]) -> BoxFuture<'e, sqlx::Result<PgStatement>>
    where
        'c: 'e,
    {
        match self.open() {
            Ok((connection, _)) => connection.prepare_with(sql, parameters),
            Err(error) => std::future::ready(Err(error)).boxed(),
        }
    }

    fn describe<'e>(self, sql: SqlStr) -> BoxFuture<'e, sqlx::Result<Describe<Postgres>>>
    where
        'c: 'e,
    {
        match self.open() {
            Ok((connection, _)) => connection.describe(sql),
            Err(error) => std::future::ready(Err(error)).boxed(),
        }
    }
}

impl<'c> Acquire<'c> for &'c mut Tx {
    type Database = Postgres;
    type Connection = &'c mut PgConnection;

    fn acquire(self) -> BoxFuture<'c, sqlx::Result<&'c mut PgConnection>> {
        Box::pin(std::future::ready(self.open().map(|(connection, _)| connection)))
    }

    fn begin(self) -> BoxFuture<'c, sqlx::Result<sqlx::Transaction<'c, Postgres>>> {
        match self.open() {
            Ok((connection, _)) => Acquire::begin(connection),
            Err(error) => std::future::ready(Err(error)).boxed(),
        }
    }
}
