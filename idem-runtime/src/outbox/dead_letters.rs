//! What a person does with messages that could not be delivered.

use sqlx::{Row, SqlStr};

use crate::error::Error;
use crate::idempotency::Idempotency;
use crate::outbox::message::Message;
use crate::outbox::relay::Transaction;

/// A message that the relay gave up.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DeadLetter {
    /// The message.
    pub message: Message,
    /// The last error, or that the process of the last delivery did not survive it.
    pub failure: String,
}

impl Idempotency {
    /// The messages that the relay gave up, the oldest first, at most `limit` of them.
    ///
    /// # Errors
    /// [`Error::Unavailable`] and [`Error::Database`].
    pub async fn dead_letters(&self, limit: u32) -> Result<Vec<DeadLetter>, Error> {
        let statements = self.outbox_statements();
        let mut transaction = Transaction::begin(self).await?;
        let rows = transaction.rows(self.query(&statements.dead_letters).bind(i64::from(limit))).await?;
        transaction.commit().await?;
        let letters = rows.iter().map(|row| {
            let message = Message::read(row, &statements.schema)?;
            Ok(DeadLetter { message, failure: row.try_get("failure")? })
        });
        letters.collect::<sqlx::Result<_>>().map_err(Error::Database)
    }

    /// Gives a dead letter to the relay again, with all its attempts. Whether it was still dead. Its group has gone on
    /// without it: it is delivered as soon as no other one of the group is.
    ///
    /// # Errors
    /// [`Error::Unavailable`] and [`Error::Database`].
    pub async fn redeliver(&self, letter: &DeadLetter) -> Result<bool, Error> {
        self.touch_message(&self.outbox_statements().redeliver, letter.message.id).await
    }

    /// Forgets a dead letter. Whether it was still dead.
    ///
    /// # Errors
    /// [`Error::Unavailable`] and [`Error::Database`].
    pub async fn discard_dead_letter(&self, letter: &DeadLetter) -> Result<bool, Error> {
        self.touch_message(&self.outbox_statements().discard_dead_letter, letter.message.id).await
    }

    async fn touch_message(&self, statement: &SqlStr, id: i64) -> Result<bool, Error> {
        let mut transaction = Transaction::begin(self).await?;
        let touched = transaction.execute(self.query(statement).bind(id)).await?;
        transaction.commit().await?;
        Ok(touched == 1)
    }
}
