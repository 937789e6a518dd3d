//! The handle that an application holds: one per database and schema, cheap to clone.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use sqlx::{PgPool, Postgres, SqlStr};
use tokio::sync::watch;

#[cfg(feature = "axum")]
use crate::detached::Detached;
use crate::error::Error;
use crate::lifecycle::in_flight::Registry;
use crate::lifecycle::outcome::StoredResponse;
use crate::lifecycle::recent::Recent;
use crate::outbox::OutboxStatements;
use crate::postgres::statements::Statements;
use crate::settings::Settings;
use crate::unused::Unused;

/// Makes handlers idempotent over one Postgres database. Cheap to clone; held in the application's state and found there
/// through `FromRef`.
///
/// ```no_run
/// # async fn example(pool: sqlx::PgPool) -> Result<(), idem_runtime::Error> {
/// use idem_runtime::Idempotency;
///
/// let idempotency = Idempotency::new(pool);
/// idempotency.migrate().await?;
/// let sweeper = idempotency.sweeper();
/// // … serve …
/// sweeper.stop().await;
/// idempotency.shutdown().await;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Idempotency {
    inner: Arc<Inner>,
}

struct Inner {
    pool: PgPool,
    settings: Settings,
    statements: Statements,
    outbox: OutboxStatements,
    registry: Registry<StoredResponse>,
    recent: Recent,
    /// How many operations run in tasks of their own.
    running: watch::Sender<usize>,
    #[cfg(feature = "axum")]
    detached: Detached,
    unused: Unused,
}

impl Idempotency {
    /// With every setting at its default.
    #[must_use]
    pub fn new(pool: PgPool) -> Self {
        Self::from_settings(pool, Settings::default())
    }

    pub(crate) fn from_settings(pool: PgPool, mut settings: Settings) -> Self {
        if settings.max_detached == 0 {
            settings.max_detached = (pool.options().get_max_connections() as usize / 2).max(1);
        }
        let statements = Statements::new(&settings.schema);
        let outbox = OutboxStatements::new(&settings.schema, settings.outbox_retention);
        let (running, _) = watch::channel(0);
        let (registry, recent) = (Registry::default(), Recent::default());
        let inner = Inner {
            pool,
            settings,
            statements,
            outbox,
            registry,
            recent,
            running,
            #[cfg(feature = "axum")]
            detached: Detached::default(),
            unused: Unused::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Waits until no operation of this handle and its clones is in flight, at most for the
    /// [`shutdown_limit`](crate::Builder::shutdown_limit). Call it after the server has stopped accepting requests.
    ///
    /// Returns how many operations still run: 0 unless the limit was reached. What is cut off then is rolled back by
    /// Postgres, and the client's retry runs it.
    pub async fn shutdown(&self) -> usize {
        let mut running = self.inner.running.subscribe();
        let limit = self.inner.settings.shutdown_limit;
        let _ = tokio::time::timeout(limit, running.wait_for(|count| *count == 0)).await;
        *self.inner.running.borrow()
    }

    pub(crate) fn pool(&self) -> &PgPool {
        &self.inner.pool
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.inner.settings
    }

    pub(crate) fn statements(&self) -> &Statements {
        &self.inner.statements
    }

    pub(crate) fn outbox_statements(&self) -> &OutboxStatements {
        &self.inner.outbox
    }

    pub(crate) fn registry(&self) -> &Registry<StoredResponse> {
        &self.inner.registry
    }

    #[cfg(feature = "axum")]
    pub(crate) fn detached(&self) -> &Detached {
        &self.inner.detached
    }

    pub(crate) fn unused(&self) -> &Unused {
        &self.inner.unused
    }

    pub(crate) fn recent(&self) -> &Recent {
        &self.inner.recent
    }

    /// Counts an operation in until the guard is dropped.
    pub(crate) fn count_in(&self) -> Running {
        self.inner.running.send_modify(|count| *count += 1);
        Running(self.clone())
    }

    /// A statement of ours with binds to come, prepared or not as the settings say.
    pub(crate) fn query<'q>(&self, statement: &SqlStr) -> Query<'q, Postgres, PgArguments> {
        sqlx::query(statement.clone()).persistent(self.settings().prepared_statements)
    }

    pub(crate) fn retry_after(&self) -> Duration {
        self.inner.settings.retry_after
    }

    pub(crate) fn unavailable(&self, source: sqlx::Error) -> Error {
        Error::Unavailable { retry_after: self.retry_after(), source }
    }

    /// `source` is what the server said, where it came to us.
    pub(crate) fn conflict(&self, source: Option<sqlx::Error>) -> Error {
        Error::Conflict { retry_after: self.retry_after(), source }
    }

    pub(crate) fn outcome_unknown(&self) -> Error {
        Error::OutcomeUnknown { retry_after: self.retry_after() }
    }

    pub(crate) fn in_flight(&self) -> Error {
        Error::InFlight { retry_after: self.retry_after() }
    }
}

impl fmt::Debug for Idempotency {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Idempotency").field("settings", &self.inner.settings).finish_non_exhaustive()
    }
}

/// One operation in flight, for [`Idempotency::shutdown`].
#[derive(Debug)]
pub(crate) struct Running(Idempotency);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.inner.running.send_modify(|count| *count -= 1);
    }
}
