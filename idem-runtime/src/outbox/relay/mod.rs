//! Delivers what was committed.
//!
//! A relay takes messages, which counts an attempt, and gives each to its topic's handler in a task of its own. What has ended is
//! settled, and what is due taken, in one transaction: under load a commit serves many messages.
//!
//! A relay is a row with a lease. While it lives, what it has taken is its own, however long a delivery lasts; when it dies, others
//! take that over, one message at a time, since one of them may be what it died of.

mod delivery;
mod doorbell;
mod engine;
mod routes;
mod search;
mod transaction;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::error::Error;
use crate::idempotency::Idempotency;
use crate::outbox::message::Message;
use crate::settings::MAX_DURATION;

use doorbell::Doorbell;
use engine::Engine;
use routes::{Route, Routes};

pub(super) use transaction::Transaction;

/// How many deliveries of a topic are under way at once, unless its relay says otherwise.
const LIMIT: u32 = 16;

/// How many a relay takes at most.
const MOST: u32 = 10_000;

/// A relay that is not started yet: which topics it takes, and what it does with their messages. See [`Idempotency::relay`].
#[must_use = "a relay does nothing until it is started"]
pub struct RelayBuilder {
    idempotency: Idempotency,
    routes: Vec<Route>,
    /// Where the routes begin that the last call has added.
    last: usize,
    limit: u32,
    timeout: Duration,
    listen: Option<PgConnectOptions>,
    problem: Option<String>,
}

impl Idempotency {
    /// A relay for the [outbox](crate::Tx::outbox). Name the topics that it takes, each with a handler, and start it. Any number of
    /// nodes may run any number of relays: they skip each other's messages. A message whose topic no relay takes waits; see
    /// [`outbox_status`](Self::outbox_status).
    ///
    /// ```no_run
    /// # async fn example(idempotency: idem_runtime::Idempotency) -> Result<(), idem_runtime::Error> {
    /// use idem_runtime::Message;
    ///
    /// async fn send_mail(message: Message) -> Result<(), std::io::Error> {
    ///     // … give `message.payload()` and `message.key()` to the mail service …
    ///     Ok(())
    /// }
    ///
    /// let relay = idempotency
    ///     .relay()
    ///     .on("mail", send_mail)
    ///     .on("webhook", |message: Message| async move {
    ///         println!("{} {}", message.topic(), message.dedupe_key());
    ///         Ok::<_, String>(())
    ///     })
    ///     .limit(64)
    ///     .start()?;
    /// // … serve …
    /// relay.stop().await;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A handler is called at least once for each committed message of its topic, and given
    /// [`delivery_timeout`](crate::Builder::delivery_timeout). An `Err`, a panic or a time-out delivers it again after a pause
    /// of 1 s, doubling up to 5 min, of which a random half to whole is kept; after
    /// [`delivery_attempts`](crate::Builder::delivery_attempts) it is a [dead letter](Self::dead_letters), and its group goes on
    /// without it. An attempt is counted before the handler is called, so a message that ends its process dies too. Give the
    /// receiver [`Message::key`], so that it has one effect.
    ///
    /// Deliveries are independent: the place of one that has ended is taken at once, one that hangs holds back no other topic, and
    /// of its own topic no more than its place (and its group).
    ///
    /// When a node dies, its messages are taken over after the [`relay_lease`](crate::Builder::relay_lease). One of them may be what
    /// it died of, so each relay tries them one after the other, each alone: nothing else is begun until it has ended or has run
    /// for a second, nor before what was under way has ended or a second has passed.
    pub fn relay(&self) -> RelayBuilder {
        RelayBuilder {
            idempotency: self.clone(),
            routes: Vec::new(),
            last: 0,
            limit: LIMIT,
            timeout: self.settings().delivery_timeout,
            listen: Some(self.pool().connect_options().as_ref().clone()),
            problem: None,
        }
    }
}

impl RelayBuilder {
    /// Takes the messages of a topic, and gives each to `handler`.
    pub fn on<F, Fut, E>(self, topic: impl Into<String>, handler: F) -> Self
    where
        F: Fn(Message) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: fmt::Display + Send + 'static,
    {
        self.on_each([topic], handler)
    }

    /// Takes the messages of several topics, and gives them to one handler. Each topic has its own [`limit`](Self::limit).
    pub fn on_each<F, Fut, E>(mut self, topics: impl IntoIterator<Item = impl Into<String>>, handler: F) -> Self
    where
        F: Fn(Message) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: fmt::Display + Send + 'static,
    {
        let handler = delivery::handler(handler);
        self.last = self.routes.len();
        for topic in topics {
            let topic: String = topic.into();
            self.add(Route::new(Some(topic.into()), Arc::clone(&handler), self.limit, self.timeout));
        }
        self
    }

    /// Takes the messages of every topic that no other call of this relay names. Each topic has its own [`limit`](Self::limit);
    /// of all of them together, 256 messages are under way at once.
    pub fn on_any<F, Fut, E>(mut self, handler: F) -> Self
    where
        F: Fn(Message) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: fmt::Display + Send + 'static,
    {
        self.last = self.routes.len();
        self.add(Route::new(None, delivery::handler(handler), self.limit, self.timeout));
        self
    }

    fn add(&mut self, route: Route) {
        if self.routes.iter().any(|other| other.topic == route.topic) {
            let topic = route.topic.as_deref().map_or_else(|| "any".to_owned(), |topic| format!("`{topic}`"));
            self.problem.get_or_insert_with(|| format!("must have one handler for a topic; {topic} has two"));
        }
        self.routes.push(route);
    }

    /// How many messages of a topic are under way at once: of what the call before it has named; before the first one, of every
    /// topic. Default 16; 1 to 10,000. What is under way holds no connection of the pool.
    pub fn limit(mut self, messages: u32) -> Self {
        if !(1..=MOST).contains(&messages) {
            self.problem.get_or_insert_with(|| "must have a `limit` of 1 to 10,000".to_owned());
        }
        match &mut self.routes[self.last..] {
            [] => self.limit = messages,
            routes => routes.iter_mut().for_each(|route| route.limit = messages),
        }
        self
    }

    /// How long a delivery may take: of what the call before it has named; before the first one, of every topic. Default
    /// [`delivery_timeout`](crate::Builder::delivery_timeout); over zero, at most 1 year.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        if timeout.is_zero() || timeout > MAX_DURATION {
            self.problem.get_or_insert_with(|| "must have a `timeout` over zero, at most 1 year".to_owned());
        }
        match &mut self.routes[self.last..] {
            [] => self.timeout = timeout,
            routes => routes.iter_mut().for_each(|route| route.timeout = timeout),
        }
        self
    }

    /// Where to listen for new messages: a connection to the server itself, where the pool's connections lead to a pooler in
    /// transaction mode. Default: a connection of its own with the pool's options.
    ///
    /// A relay that finds that it hears nothing looks for messages every [`relay_interval`](crate::Builder::relay_interval).
    pub fn listen_with(mut self, options: PgConnectOptions) -> Self {
        self.listen = Some(options);
        self
    }

    /// Looks for messages every [`relay_interval`](crate::Builder::relay_interval) and opens no connection to listen for them.
    pub fn without_listening(mut self) -> Self {
        self.listen = None;
        self
    }

    /// Starts the relay. Dropping the handle leaves it running.
    ///
    /// # Errors
    /// [`Error::Setting`] without a handler, for a topic with two, and for a limit or a time-out that is out of its limits.
    ///
    /// # Panics
    /// Outside a Tokio runtime.
    pub fn start(self) -> Result<Relay, Error> {
        let missing = self.routes.is_empty().then(|| "must have a topic; use `on` or `on_any`".to_owned());
        if let Some(problem) = self.problem.or(missing) {
            return Err(Error::Setting { name: "relay", problem });
        }
        let (stop, stopped) = watch::channel(false);
        let delivered = Arc::new(AtomicU64::new(0));
        let doorbell = Doorbell::install(&self.idempotency, self.listen);
        let engine = Engine::new(self.idempotency, Routes::new(self.routes), doorbell, stopped, Arc::clone(&delivered));
        Ok(Relay { stop, delivered, task: tokio::spawn(engine.run()) })
    }
}

impl fmt::Debug for RelayBuilder {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let topics: Vec<_> = self.routes.iter().map(|route| route.topic.as_deref()).collect();
        formatter.debug_struct("RelayBuilder").field("topics", &topics).finish_non_exhaustive()
    }
}

/// A relay that runs, started by [`RelayBuilder::start`]. Dropping the handle leaves it running.
#[derive(Debug)]
pub struct Relay {
    stop: watch::Sender<bool>,
    delivered: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

impl Relay {
    /// How many deliveries have succeeded so far.
    #[must_use]
    pub fn delivered(&self) -> u64 {
        self.delivered.load(Ordering::Relaxed)
    }

    /// Takes no more messages, waits until those under way have ended and are settled, and returns how many deliveries have
    /// succeeded in all.
    pub async fn stop(self) -> u64 {
        self.stop.send_replace(true);
        let _ = self.task.await;
        self.delivered.load(Ordering::Relaxed)
    }
}
