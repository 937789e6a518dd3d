//! A message about a write must go out if and only if the write was committed, so it is written with it. The relay delivers it
//! afterwards, at least once.

mod dead_letters;
mod message;
mod relay;
mod statements;
mod status;

use serde::Serialize;
use sqlx::{Column, Row, SqlStr};

use crate::error::Error;
use crate::postgres::connection::unlogged;
use crate::postgres::transaction::Tx;

pub use dead_letters::DeadLetter;
pub use message::Message;
pub use relay::{Relay, RelayBuilder};
use statements::Letter;
pub(crate) use statements::OutboxStatements;
pub use status::TopicStatus;

/// Writes messages in the transaction of a handler. See [`Tx::outbox`].
#[derive(Debug)]
pub struct Outbox<'a> {
    tx: &'a mut Tx,
    group: Option<&'a str>,
}

/// What [`Outbox::send`] found in its message's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Sent {
    /// Nothing, or a message that was delivered longer ago than [`outbox_retention`](crate::Builder::outbox_retention): the message
    /// is written.
    New,
    /// The same topic and deduplication key, waiting, under way or delivered: nothing is written, and its payload stays the first
    /// one's.
    Duplicate,
    /// A [dead letter](crate::Idempotency::dead_letters) with this topic and key: the new message takes its place, with all its
    /// attempts.
    Dead,
}

impl Tx {
    /// The outbox of this transaction: a message that is sent through it goes out if and only if the transaction commits.
    ///
    /// ```
    /// # use idem_runtime::{Error, Tx};
    /// async fn confirm(tx: &mut Tx, order: i64) -> Result<(), Error> {
    ///     tx.outbox().send("mail", &format!("confirm:{order}"), &order).await?;
    ///     Ok(())
    /// }
    /// ```
    pub fn outbox(&mut self) -> Outbox<'_> {
        Outbox { tx: self, group: None }
    }
}

impl<'a> Outbox<'a> {
    /// Messages of one group are delivered one after the other, in the order in which their transactions committed, and within a
    /// transaction in the order in which they were sent. A group spans topics. A message without a group waits for no other.
    ///
    /// So that there is such an order, the writers of a group take turns: `send` waits while another transaction that has sent to
    /// the group is open. Send late in the handler, and what is sent to several groups in one order everywhere (sorted, for
    /// example): a process that stalls meanwhile holds up the group for as long as the handler's `lease`. Two transactions that wait for each other, for two groups or for a group and a row, are a deadlock: Postgres ends
    /// one of them after its `deadlock_timeout` (1 s), it is answered with 503, and the client's retry runs.
    #[must_use]
    pub fn group(mut self, group: &'a str) -> Self {
        self.group = Some(group);
        self
    }

    /// Writes a message. The same `topic` and `dedupe_key` twice is one message, for as long as the delivered one is
    /// remembered ([`outbox_retention`](crate::Builder::outbox_retention)), unless it is dead. See [`Sent`].
    ///
    /// While another transaction with the same topic and key is open, it waits for its end.
    ///
    /// # Errors
    /// [`Error::Json`] for a payload that does not serialize, [`Error::Conflict`], [`Error::Unavailable`] and [`Error::Database`] as
    /// any statement of the transaction.
    pub async fn send(self, topic: &str, dedupe_key: &str, payload: &(impl Serialize + ?Sized)) -> Result<Sent, Error> {
        let payload = serde_json::to_vec(payload).map_err(Error::Json)?;
        let idempotency = self.tx.idempotency().clone();
        let letter = Letter { topic, dedupe_key, group: self.group, payload: &payload };
        write(self.tx, idempotency.outbox_statements(), &letter).await.map_err(|error| idempotency.not_executed(error))
    }
}

async fn write(tx: &mut Tx, statements: &OutboxStatements, letter: &Letter<'_>) -> sqlx::Result<Sent> {
    loop {
        if let Some((0, _)) = written(tx, statements.send(letter)).await? {
            return Ok(Sent::New);
        }
        match written(tx, statements.send_again(letter)).await? {
            Some((0, _)) => return Ok(Sent::New),
            Some((1.., _)) => return Ok(Sent::Dead),
            Some((_, true)) => return Ok(Sent::Duplicate),
            // Swept between the two statements.
            _ => {}
        }
    }
}

/// How often the message that was written had died before, -1 for one that was not written; and whether its key is taken. `None`
/// where nothing was said.
async fn written(tx: &mut Tx, statement: SqlStr) -> sqlx::Result<Option<(i32, bool)>> {
    // The statement holds the payload: it stays out of logs.
    let rows = unlogged(sqlx::raw_sql(statement).fetch_all(&mut *tx)).await?;
    let row = rows.iter().find(|row| row.columns().iter().any(|column| column.name() == "deaths"));
    row.map(|row| Ok((row.try_get::<Option<i32>, _>("deaths")?.unwrap_or(-1), row.try_get("present")?))).transpose()
}
