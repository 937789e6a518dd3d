//! What waits, and for whom.

use serde::Serialize;
use sqlx::Row;

use crate::error::Error;
use crate::idempotency::Idempotency;
use crate::outbox::relay::Transaction;

/// What the outbox holds of a topic that is not delivered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct TopicStatus {
    /// The topic.
    pub topic: String,
    /// How many messages wait for a relay, for a pause to be over, or for another one of their group.
    pub waiting: i64,
    /// How many are being delivered.
    pub under_way: i64,
    /// How many are dead letters.
    pub dead: i64,
    /// How many running relays take this topic. A relay that died counts until its
    /// [`relay_lease`](crate::Builder::relay_lease) is over.
    pub relays: i64,
}

impl TopicStatus {
    /// Whether messages wait and no running relay takes them.
    #[must_use]
    pub fn is_unclaimed(&self) -> bool {
        self.relays == 0 && self.waiting > 0
    }
}

impl Idempotency {
    /// What the outbox holds, by topic: what is delivered does not count. A topic for which nobody has started a relay
    /// [is unclaimed](TopicStatus::is_unclaimed).
    ///
    /// It counts every message that waits.
    ///
    /// # Errors
    /// [`Error::Unavailable`] and [`Error::Database`].
    pub async fn outbox_status(&self) -> Result<Vec<TopicStatus>, Error> {
        let mut transaction = Transaction::begin(self).await?;
        let rows = transaction.rows(self.query(&self.outbox_statements().status)).await?;
        transaction.commit().await?;
        let topics = rows.iter().map(|row| {
            Ok(TopicStatus {
                topic: row.try_get("topic")?,
                waiting: row.try_get("waiting")?,
                under_way: row.try_get("under_way")?,
                dead: row.try_get("dead")?,
                relays: row.try_get("relays")?,
            })
        });
        topics.collect::<sqlx::Result<_>>().map_err(Error::Database)
    }
}
