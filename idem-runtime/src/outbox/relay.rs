//! Delivers what was committed.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::timeout;

use crate::background::{AsyncRound, Background, Round};
use crate::error::Error;
use crate::idempotency::Idempotency;
use crate::outbox::message::Message;

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
            idempotency.query(&idempotency.outbox_statements().reserve_messages).bind(BATCH).bind(hold.as_secs_f64());
        let rows = reserve.fetch_all(&mut *connection).await.map_err(|error| idempotency.not_executed(error))?;
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
        let statements = idempotency.outbox_statements();
        let last = attempt >= i32::try_from(settings.delivery_attempts).unwrap_or(i32::MAX);
        let settle = match failure {
            None => idempotency.query(&statements.delivered).bind(id).bind(attempt),
            Some(failure) => {
                tracing::warn!(attempt, failure, last, "a message could not be delivered");
                idempotency.query(&statements.not_delivered).bind(id).bind(attempt).bind(last.then_some(failure))
            }
        };
        let mut connection = idempotency.connection().await?;
        settle.execute(&mut *connection).await.map_err(|error| idempotency.not_executed(error))?;
        Ok(())
    }
}
