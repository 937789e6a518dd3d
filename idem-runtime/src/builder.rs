//! Settings are checked when the application starts: a bad one must not wait for the first payment.

use std::fmt;
use std::time::Duration;

use http::HeaderName;
use sqlx::PgPool;

use crate::error::Error;
use crate::idempotency::Idempotency;
use crate::settings::Settings;

/// Configures an [`Idempotency`]. Every setting has a default; [`build`](Self::build) checks them all.
#[derive(Clone)]
pub struct Builder {
    pool: PgPool,
    settings: Settings,
    header: String,
    replay_header: String,
    resent_headers: Vec<String>,
}

impl Idempotency {
    /// Starts from the defaults; see [`Builder`] for the settings.
    #[must_use]
    pub fn builder(pool: PgPool) -> Builder {
        Builder::new(pool)
    }
}

impl Builder {
    fn new(pool: PgPool) -> Self {
        let settings = Settings::default();
        let (header, replay_header) = (settings.header.to_string(), settings.replay_header.to_string());
        let resent_headers = settings.resent_headers.iter().map(ToString::to_string).collect();
        Self { pool, settings, header, replay_header, resent_headers }
    }

    /// The Postgres schema that holds the tables. Default `idem`; 1 to 63 bytes.
    ///
    /// Two applications in one database use two schemas.
    #[must_use]
    pub fn schema(mut self, name: impl Into<String>) -> Self {
        self.settings.schema = name.into();
        self
    }

    /// The request header that carries the key. Default `Idempotency-Key`.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>) -> Self {
        self.header = name.into();
        self
    }

    /// The response header that marks a replay with `true`. Default `Idempotency-Replayed`.
    #[must_use]
    pub fn replay_header(mut self, name: impl Into<String>) -> Self {
        self.replay_header = name.into();
        self
    }

    /// The status for a key that was used with another request: 422 (default) or 409.
    #[must_use]
    pub fn mismatch_status(mut self, status: u16) -> Self {
        self.settings.mismatch_status = status;
        self
    }

    /// What problem types begin with; the problem's name follows. Default: this crate's page
    /// [`contract`](crate::contract). Must be an absolute `http` or `https` URL.
    #[must_use]
    pub fn problem_base_url(mut self, url: impl Into<String>) -> Self {
        self.settings.problem_base_url = url.into();
        self
    }

    /// How long a claim may sit idle before Postgres ends its transaction and others may take over. Default 60 s; 1 s to
    /// 1 year. A handler's `lease = …` goes before it.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.settings.lease = lease;
        self
    }

    /// The `Retry-After` of 409 and 503 answers, rounded up to seconds. Default 1 s; 1 s to 1 year.
    #[must_use]
    pub fn retry_after(mut self, retry_after: Duration) -> Self {
        self.settings.retry_after = retry_after;
        self
    }

    /// How long a request waits for a connection of the pool, and then for the server's answer to its claim, before it is
    /// answered with 503. Default 5 s; over zero, at most 1 year. The pool's own `acquire_timeout` holds too.
    ///
    /// A server that does not answer the commit within this time and the lease is taken for lost, and the outcome is looked
    /// up on another connection.
    #[must_use]
    pub fn connection_timeout(mut self, timeout: Duration) -> Self {
        self.settings.connection_timeout = timeout;
        self
    }

    /// The longest response body that is stored, in bytes. Default 1 MiB; 0 to 256 MiB. A longer one is rolled back
    /// and answered with 500. (Request bodies are limited by axum's `DefaultBodyLimit`.)
    #[must_use]
    pub fn response_limit(mut self, bytes: usize) -> Self {
        self.settings.response_limit = bytes;
        self
    }

    /// The statuses below 500 that roll back and release the key instead of being stored. Default 408, 425 and 429.
    #[must_use]
    pub fn never_store(mut self, statuses: impl IntoIterator<Item = u16>) -> Self {
        self.settings.never_stored = statuses.into_iter().collect();
        self
    }

    /// How long [`shutdown`](Idempotency::shutdown) waits for operations in flight. Default 30 s; over zero, at most 1 year.
    #[must_use]
    pub fn shutdown_limit(mut self, limit: Duration) -> Self {
        self.settings.shutdown_limit = limit;
        self
    }

    /// How many handlers may go on without their clients before new requests wait. Default half of the pool's connections; at least 1.
    ///
    /// A handler that has begun goes on when its client hangs up, outside of any limit on concurrent requests that the application has;
    /// clients that hang up all at once leave as many as had begun. Beyond this number a new request waits before it begins, as long as it may wait for a connection, and is then answered with 503; one whose
    /// client is gone meanwhile is not begun.
    #[must_use]
    pub fn max_detached(mut self, handlers: usize) -> Self {
        self.settings.max_detached = handlers.max(1);
        self
    }

    /// How long the [sweeper](Idempotency::sweeper) rests when it has found nothing more to delete. Default 10 s; over
    /// zero, at most 1 year.
    #[must_use]
    pub fn sweep_interval(mut self, interval: Duration) -> Self {
        self.settings.sweep_interval = interval;
        self
    }

    /// The most rows that one statement of the [sweeper](Idempotency::sweeper) deletes. Default 1,000; 1 to 100,000.
    #[must_use]
    pub fn sweep_batch(mut self, rows: u32) -> Self {
        self.settings.sweep_batch = rows;
        self
    }

    /// How long the [completer](Idempotency::completer) rests when it has found nothing more to do. Default 1 s; over zero, at
    /// most 1 year.
    #[must_use]
    pub fn recovery_interval(mut self, interval: Duration) -> Self {
        self.settings.recovery_interval = interval;
        self
    }

    /// How often the [completer](Idempotency::completer) sends one operation again before it is marked as failed. Default 10; 1
    /// to 1,000.
    #[must_use]
    pub fn recovery_attempts(mut self, attempts: u32) -> Self {
        self.settings.recovery_attempts = attempts;
        self
    }

    /// How long a [relay](Idempotency::relay) that is not woken waits at most before it looks for messages. Default 500 ms; over
    /// zero, at most 1 year.
    ///
    /// A commit wakes it where it can [listen](crate::RelayBuilder::listen_with); then this is for what no commit announces, such as
    /// the end of a pause.
    #[must_use]
    pub fn relay_interval(mut self, interval: Duration) -> Self {
        self.settings.relay_interval = interval;
        self
    }

    /// How long a [relay](Idempotency::relay) that has died keeps what it had under way; one that lives renews its lease three times
    /// in this time. Default 15 s; 1 s to 1 year.
    #[must_use]
    pub fn relay_lease(mut self, lease: Duration) -> Self {
        self.settings.relay_lease = lease;
        self
    }

    /// How long one delivery may take, unless its relay [says otherwise](crate::RelayBuilder::timeout). Default 30 s; over zero, at
    /// most 1 year.
    #[must_use]
    pub fn delivery_timeout(mut self, timeout: Duration) -> Self {
        self.settings.delivery_timeout = timeout;
        self
    }

    /// How often a [relay](Idempotency::relay) begins to deliver one message before it is a dead letter. Default 10; 1 to 1,000. A
    /// delivery that its process did not survive counts.
    #[must_use]
    pub fn delivery_attempts(mut self, attempts: u32) -> Self {
        self.settings.delivery_attempts = attempts;
        self
    }

    /// How long a delivered message is remembered, so that the same topic and deduplication key is no new message. Default 7
    /// days; over zero, at most 1 year.
    #[must_use]
    pub fn outbox_retention(mut self, retention: Duration) -> Self {
        self.settings.outbox_retention = retention;
        self
    }

    /// The request headers that a multi-step operation keeps, for the [completer](Idempotency::completer) to send again.
    /// Default `Content-Type` and `Accept`. They are stored in the database: name no credentials.
    #[must_use]
    pub fn resent_headers<N: Into<String>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.resent_headers = names.into_iter().map(Into::into).collect();
        self
    }

    /// Whether statements are prepared once a connection and kept. Default `true`.
    ///
    /// Switch it off behind a pooler in transaction mode that does not know prepared statements (PgBouncer before 1.21, or
    /// with `max_prepared_statements = 0`): a named statement would be left in a session that the next transaction does not
    /// get. It costs a round trip more for each request. The handler's own queries need `.persistent(false)` there, as in
    /// every sqlx application, and migrations a direct connection.
    #[must_use]
    pub fn prepared_statements(mut self, prepared: bool) -> Self {
        self.settings.prepared_statements = prepared;
        self
    }

    /// Whether the pool checks an idle connection before a claim or a replay gets it, with its ping (`test_before_acquire`)
    /// and its `before_acquire` hook. Default `true`.
    ///
    /// Switched off, it saves a round trip for each request: the first statement tells whether the connection lives,
    /// and is sent again on another one if it does not. Leave it on for a pool whose `before_acquire` hook must run.
    /// (`after_connect` and `after_release` always do.)
    #[must_use]
    pub fn pool_checks(mut self, checks: bool) -> Self {
        self.settings.pool_checks = checks;
        self
    }

    /// Checks every setting.
    ///
    /// # Errors
    /// [`Error::Setting`] with the name of the first setting that is out of its limits.
    pub fn build(self) -> Result<Idempotency, Error> {
        let mut settings = self.settings;
        settings.header = header_name("header", &self.header)?;
        settings.replay_header = header_name("replay_header", &self.replay_header)?;
        settings.resent_headers =
            self.resent_headers.iter().map(|name| header_name("resent_headers", name)).collect::<Result<_, _>>()?;
        settings.check()?;
        Ok(Idempotency::from_settings(self.pool, settings))
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Builder").field("settings", &self.settings).finish_non_exhaustive()
    }
}

fn header_name(setting: &'static str, name: &str) -> Result<HeaderName, Error> {
    HeaderName::try_from(name)
        .map_err(|_| Error::Setting { name: setting, problem: format!("must be a header name, not `{name}`") })
}
