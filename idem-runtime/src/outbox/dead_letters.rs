//! What a person does with messages that could not be delivered.

use sqlx::Row;

use crate::error::Error;
use crate::idempotency::Idempotency;
use crate::outbox::message::Message;

/// A message that the relay gave up.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DeadLetter {
    /// The message.
    pub message: Message,
    /// The last error.
    pub failure: String,
}

impl Idempotency {
    /// The messages that the relay gave up, the oldest first, at most `limit` of them.
    ///
    /// # Errors
    /// [`Error::Unavailable`] and [`Error::Database`].
    pub async fn dead_letters(&self, limit: u32) -> Result<Vec<DeadLetter>, Error> {
        let mut connection = self.connection().await?;
        let dead = self.query(&self.outbox_statements().dead_letters).bind(i64::from(limit));
        let rows = dead.fetch_all(&mut *connection).await.map_err(|error| self.not_executed(error))?;
        let letters =
            rows.iter().map(|row| Ok(DeadLetter { message: Message::read(row)?, failure: row.try_get("failure")? }));
        letters.collect::<sqlx::Result<_>>().map_err(Error::Database)
    }

    /// Gives a dead letter to the relay again, with all its attempts. Whether it was still dead.
    ///
    /// # Errors
    /// [`Error::Unavailable`] and [`Error::Database`].
    pub async fn redeliver(&self, letter: &DeadLetter) -> Result<bool, Error> {
        self.touch_message(self.outbox_statements().redeliver.clone(), letter.message.id).await
    }

    /// Forgets a dead letter. Whether it was still dead.
    ///
    /// # Errors
    /// [`Error::Unavailable`] and [`Error::Database`].
    pub async fn discard_dead_letter(&self, letter: &DeadLetter) -> Result<bool, Error> {
        self.touch_message(self.outbox_statements().discard_dead_letter.clone(), letter.message.id).await
    }

    async fn touch_message(&self, statement: sqlx::SqlStr, id: i64) -> Result<bool, Error> {
        let mut connection = self.connection().await?;
        let touch = self.query(&statement).bind(id);
        let touched = touch.execute(&mut *connection).await.map_err(|error| self.not_executed(error))?;
        Ok(touched.rows_affected() == 1)
    }
}
