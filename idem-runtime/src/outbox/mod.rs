//! A message about a write must go out if and only if the write was committed, so it is written with it. The relay delivers it
//! afterwards, at least once.

mod dead_letters;
mod message;
mod relay;
mod statements;

use serde::Serialize;

use crate::error::Error;
use crate::postgres::transaction::Tx;

pub use dead_letters::DeadLetter;
pub use message::Message;
pub use relay::Relay;
pub(crate) use statements::OutboxStatements;

/// Writes messages in the transaction of a handler. See [`Tx::outbox`].
#[derive(Debug)]
pub struct Outbox<'a> {
    tx: &'a mut Tx,
    group: Option<&'a str>,
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
    /// Messages of one group are delivered one after the other, in the order in which they were written. A message without a
    /// group waits for no other.
    #[must_use]
    pub fn group(mut self, group: &'a str) -> Self {
        self.group = Some(group);
        self
    }

    /// Writes a message. The same `topic` and `dedupe_key` twice is one message, for as long as the delivered one is
    /// remembered ([`outbox_retention`](crate::Builder::outbox_retention)). Whether it is a new one.
    ///
    /// # Errors
    /// [`Error::Json`] for a payload that does not serialize, [`Error::Unavailable`] and [`Error::Database`] as any
    /// statement of the transaction.
    pub async fn send(self, topic: &str, dedupe_key: &str, payload: &(impl Serialize + ?Sized)) -> Result<bool, Error> {
        let payload = serde_json::to_vec(payload).map_err(Error::Json)?;
        let idempotency = self.tx.idempotency().clone();
        let send = idempotency
            .query(&idempotency.outbox_statements().send)
            .bind(topic)
            .bind(dedupe_key)
            .bind(self.group)
            .bind(payload);
        let sent = send.execute(&mut *self.tx).await.map_err(|error| idempotency.not_executed(error))?;
        Ok(sent.rows_affected() == 1)
    }
}
