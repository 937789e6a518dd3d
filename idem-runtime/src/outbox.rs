//! A message about a write must go out if and only if the write was committed, so it is written with it. The relay delivers it
//! afterwards, at least once.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sqlx::Row;
use sqlx::postgres::PgRow;
use tokio::time::timeout;

use crate::background::{AsyncRound, Background, Round};
use crate::error::Error;
use crate::fingerprint::sha256;
use crate::hex;
use crate::idempotency::Idempotency;
use crate::key::IdempotencyKey;
use crate::postgres::transaction::{Tx, is_conflict};

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
            .query(&idempotency.statements().send)
            .bind(topic)
            .bind(dedupe_key)
            .bind(self.group)
            .bind(payload);
        let sent = send.execute(&mut *self.tx).await.map_err(|error| {
            if is_conflict(&error) { idempotency.unavailable(error) } else { Error::Database(error) }
        })?;
        Ok(sent.rows_affected() == 1)
    }
}

/// A message on its way from the outbox.
#[derive(Clone, PartialEq, Eq)]
pub struct Message {
    id: i64,
    topic: String,
    dedupe_key: String,
    payload: Vec<u8>,
    attempt: i32,
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

    fn read(row: &PgRow) -> sqlx::Result<Self> {
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

/// A message that the relay gave up.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DeadLetter {
    /// The message.
    pub message: Message,
    /// The last error.
    pub failure: String,
}

/// A task that delivers messages, started by [`Idempotency::relay`]. Dropping the handle leaves it running.
#[derive(Debug)]
pub struct Relay(Background);

impl Relay {
    /// How many deliveries have succeeded so far.
    #[must_use]
    pub fn delivered(&self) -> u64 {
        self.0.total()
    }

    /// Stops after the batch at hand and returns how many deliveries have succeeded in all.
    pub async fn stop(self) -> u64 {
        self.0.stop().await
    }
}

impl Idempotency {
    /// Starts a relay. Any number of nodes may run one: they skip each other's messages.
    ///
    /// `deliver` is called at least once for each committed message, at most sixteen at a time, and given
    /// [`delivery_timeout`](crate::Builder::delivery_timeout). An `Err`, a panic or a time-out delivers it again after a pause
    /// of 1 s, doubling up to 5 min, with jitter; after [`delivery_attempts`](crate::Builder::delivery_attempts) it is a
    /// dead letter, and its group goes on without it. A node that dies lets its messages go when the time-out is over. Give the
    /// receiver [`Message::key`], so that it has one effect.
    ///
    /// # Panics
    /// Outside a Tokio runtime.
    #[must_use = "the handle stops the relay and tells what it has done"]
    pub fn relay<F, Fut, E>(&self, deliver: F) -> Relay
    where
        F: Fn(Message) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: fmt::Display + Send + 'static,
    {
        let interval = self.settings().relay_interval;
        Relay(Background::spawn("relay", interval, Delivery { idempotency: self.clone(), deliver: Arc::new(deliver) }))
    }

    /// The messages that the relay gave up, the oldest first, at most `limit` of them.
    ///
    /// # Errors
    /// [`Error::Unavailable`] and [`Error::Database`].
    pub async fn dead_letters(&self, limit: u32) -> Result<Vec<DeadLetter>, Error> {
        let mut connection = self.connection().await?;
        let dead = self.query(&self.statements().dead_letters).bind(i64::from(limit));
        let rows = dead.fetch_all(&mut *connection).await.map_err(|error| self.refused(error))?;
        let letters =
            rows.iter().map(|row| Ok(DeadLetter { message: Message::read(row)?, failure: row.try_get("failure")? }));
        letters.collect::<sqlx::Result<_>>().map_err(Error::Database)
    }

    /// Gives a dead letter to the relay again, with all its attempts. Whether it was still dead.
    ///
    /// # Errors
    /// [`Error::Unavailable`] and [`Error::Database`].
    pub async fn redeliver(&self, letter: &DeadLetter) -> Result<bool, Error> {
        self.touch_message(self.statements().redeliver.clone(), letter.message.id).await
    }

    /// Forgets a dead letter. Whether it was still dead.
    ///
    /// # Errors
    /// [`Error::Unavailable`] and [`Error::Database`].
    pub async fn discard_dead_letter(&self, letter: &DeadLetter) -> Result<bool, Error> {
        self.touch_message(self.statements().discard_dead_letter.clone(), letter.message.id).await
    }

    async fn touch_message(&self, statement: sqlx::SqlStr, id: i64) -> Result<bool, Error> {
        let mut connection = self.connection().await?;
        let touch = self.query(&statement).bind(id);
        let touched = touch.execute(&mut *connection).await.map_err(|error| self.refused(error))?;
        Ok(touched.rows_affected() == 1)
    }
}

/// How many messages a round takes.
const BATCH: i64 = 16;

struct Delivery<F> {
    idempotency: Idempotency,
    deliver: Arc<F>,
}

impl<F, Fut, E> AsyncRound for Delivery<F>
where
    F: Fn(Message) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), E>> + Send + 'static,
    E: fmt::Display + Send + 'static,
{
    async fn round(&mut self) -> Result<Round, Error> {
        let messages = self.reserve().await?;
        let found = !messages.is_empty();
        let delivered = join_all(messages.into_iter().map(|message| self.deliver(message))).await;
        let delivered =
            delivered.into_iter().collect::<Result<Vec<bool>, Error>>()?.into_iter().filter(|done| *done).count()
                as u64;
        // The next of a group becomes due when its predecessor is delivered.
        Ok(if found { Round::More(delivered) } else { Round::Done(delivered) })
    }
}

impl<F, Fut, E> Delivery<F>
where
    F: Fn(Message) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), E>> + Send + 'static,
    E: fmt::Display + Send + 'static,
{
    /// A reservation runs out a little after the delivery's time-out.
    async fn reserve(&self) -> Result<Vec<Message>, Error> {
        let (idempotency, settings) = (&self.idempotency, self.idempotency.settings());
        let hold = settings.delivery_timeout + Duration::from_secs(1);
        let mut connection = idempotency.connection().await?;
        let reserve =
            idempotency.query(&idempotency.statements().reserve_messages).bind(BATCH).bind(hold.as_secs_f64());
        let rows = reserve.fetch_all(&mut *connection).await.map_err(|error| idempotency.refused(error))?;
        let mut messages: Vec<Message> =
            rows.iter().map(Message::read).collect::<sqlx::Result<_>>().map_err(Error::Database)?;
        messages.sort_by_key(|message| message.id);
        Ok(messages)
    }

    async fn deliver(&self, message: Message) -> Result<bool, Error> {
        let (id, attempt) = (message.id, message.attempt);
        // In a task of its own, from the call on: a panic of the application must not end the relay.
        let deliver = Arc::clone(&self.deliver);
        let mut delivery = tokio::spawn(async move { deliver(message).await });
        let failure = match timeout(self.idempotency.settings().delivery_timeout, &mut delivery).await {
            Ok(Ok(Ok(()))) => None,
            // Postgres takes no NUL in a text.
            Ok(Ok(Err(error))) => Some(error.to_string().replace('\0', "\u{fffd}")),
            Ok(Err(_)) => Some("the delivery panicked".to_owned()),
            Err(_) => {
                delivery.abort();
                Some("the delivery took too long".to_owned())
            }
        };
        self.settle(id, attempt, failure.as_deref()).await?;
        Ok(failure.is_none())
    }

    /// Touches the message only while this delivery is the last one: a slow node changes nothing of its successor's.
    async fn settle(&self, id: i64, attempt: i32, failure: Option<&str>) -> Result<(), Error> {
        let (idempotency, settings) = (&self.idempotency, self.idempotency.settings());
        let statements = idempotency.statements();
        let last = attempt >= i32::try_from(settings.delivery_attempts).unwrap_or(i32::MAX);
        let settle = match failure {
            None => idempotency.query(&statements.delivered).bind(id).bind(attempt),
            Some(failure) => {
                tracing::warn!(attempt, failure, last, "a message could not be delivered");
                idempotency.query(&statements.not_delivered).bind(id).bind(attempt).bind(last.then_some(failure))
            }
        };
        let mut connection = idempotency.connection().await?;
        settle.execute(&mut *connection).await.map_err(|error| idempotency.refused(error))?;
        Ok(())
    }
}
