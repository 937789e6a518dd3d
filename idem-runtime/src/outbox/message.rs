//! What a delivery is given.

use std::fmt;

use serde::de::DeserializeOwned;
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::error::Error;
use crate::fingerprint::sha256;
use crate::hex;
use crate::key::IdempotencyKey;

/// A message on its way from the outbox.
#[derive(Clone, PartialEq, Eq)]
pub struct Message {
    pub(super) id: i64,
    topic: String,
    dedupe_key: String,
    group: Option<String>,
    payload: Vec<u8>,
    pub(super) attempt: i32,
    key: IdempotencyKey,
}

impl Message {
    /// Its topic.
    #[must_use]
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// Its deduplication key within the topic.
    #[must_use]
    pub fn dedupe_key(&self) -> &str {
        &self.dedupe_key
    }

    /// Its group, in which messages are delivered in order.
    #[must_use]
    pub fn group(&self) -> Option<&str> {
        self.group.as_deref()
    }

    /// Its payload.
    ///
    /// # Errors
    /// [`Error::Json`] if it does not fit `T`.
    pub fn payload<T: DeserializeOwned>(&self) -> Result<T, Error> {
        serde_json::from_slice(&self.payload).map_err(Error::Json)
    }

    /// Which delivery this is, from 1.
    #[must_use]
    pub fn attempt(&self) -> i32 {
        self.attempt
    }

    /// An idempotency key for the receiver, the same on every delivery, of at most 62 characters: the beginning of the topic, and a
    /// digest over the [schema](crate::Builder::schema), the topic and the deduplication key. Two applications that share a
    /// receiver have different keys if their schemas have different names.
    #[must_use]
    pub fn key(&self) -> IdempotencyKey {
        self.key.clone()
    }

    pub(super) fn read(row: &PgRow, schema: &str) -> sqlx::Result<Self> {
        let (topic, dedupe_key): (String, String) = (row.try_get("topic")?, row.try_get("dedupe_key")?);
        Ok(Self {
            id: row.try_get("id")?,
            group: row.try_get("group_key")?,
            payload: row.try_get("payload")?,
            attempt: row.try_get("attempts")?,
            key: key(schema, &topic, &dedupe_key),
            topic,
            dedupe_key,
        })
    }
}

/// So much of the topic is for people to read.
const READABLE: usize = 20;

fn key(schema: &str, topic: &str, dedupe_key: &str) -> IdempotencyKey {
    let digest = sha256(&[b"message", schema.as_bytes(), topic.as_bytes(), dedupe_key.as_bytes()]);
    let readable =
        topic.chars().map(|letter| if letter.is_ascii_alphanumeric() || "-_.".contains(letter) { letter } else { '-' });
    let readable: String = readable.take(READABLE).collect();
    IdempotencyKey::from_digest(&format!("{readable}:{}", &hex::encode(&digest)[..40]))
}

impl fmt::Debug for Message {
    /// Without the payload: it stays out of logs.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = formatter.debug_struct("Message");
        debug.field("id", &self.id).field("topic", &self.topic).field("attempt", &self.attempt).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::key;
    use crate::key::IdempotencyKey;

    #[test]
    fn keys_name_the_application_the_topic_and_the_message_and_fit() {
        let messages = [
            ("idem", "mail", "1"),
            ("shop", "mail", "1"),
            ("idem", "mail1", ""),
            ("idem", "mai", "l1"),
            ("idemm", "ail", "1"),
            ("idem", "a:b", "c"),
            ("idem", "a", "b:c"),
            ("idem", "a-b", "c"),
            ("idem", "äöü \0", "c"),
            ("idem", "", "c"),
        ];
        let long = "a-topic-of-many-words-and-".repeat(10);
        let messages = messages.into_iter().chain([("idem", long.as_str(), "1"), ("idem", long.as_str(), "2")]);
        let keys: Vec<_> = messages.map(|(schema, topic, dedupe_key)| key(schema, topic, dedupe_key)).collect();
        for (place, key) in keys.iter().enumerate() {
            assert!(key.as_str().len() < 64 && IdempotencyKey::new(key.as_str()).is_ok(), "{key}");
            assert!(!keys[..place].contains(key), "{key}");
        }
        assert!(keys[0].as_str().starts_with("mail:"), "{}", keys[0]);
        assert_eq!(key("idem", "mail", "1"), keys[0]);
    }
}
