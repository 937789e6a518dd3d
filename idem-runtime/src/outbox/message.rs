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
    payload: Vec<u8>,
    pub(super) attempt: i32,
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

    /// An idempotency key for the receiver, the same on every delivery: the SHA-256 of topic and deduplication key.
    #[must_use]
    pub fn key(&self) -> IdempotencyKey {
        let digest = sha256(&[self.topic.as_bytes(), self.dedupe_key.as_bytes()]);
        IdempotencyKey::from_digest(&hex::encode(&digest))
    }

    pub(super) fn read(row: &PgRow) -> sqlx::Result<Self> {
        Ok(Self {
            id: row.try_get("id")?,
            topic: row.try_get("topic")?,
            dedupe_key: row.try_get("dedupe_key")?,
            payload: row.try_get("payload")?,
            attempt: row.try_get("attempts")?,
        })
    }
}

impl fmt::Debug for Message {
    /// Without the payload: it stays out of logs.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = formatter.debug_struct("Message");
        debug.field("id", &self.id).field("topic", &self.topic).field("attempt", &self.attempt).finish_non_exhaustive()
    }
}
