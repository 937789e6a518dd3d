//! A relay that sleeps is woken by the commit of a message: through LISTEN, on a connection of its own.
//!
//! Nothing depends on it. A connection that is lost, a pooler that swallows notifications: the relay notices that no bell rings, and
//! looks at its interval.

use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::error::Error;
use crate::idempotency::Idempotency;

/// How long a notification to ourselves may take before we know that none arrives.
const PROBE: Duration = Duration::from_secs(5);

/// The pauses before another connection is tried: the first, doubling to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LAST_PAUSE: Duration = Duration::from_secs(60);

pub(super) struct Doorbell {
    rung: Arc<Notify>,
    /// Whether notifications arrive.
    hears: watch::Receiver<bool>,
    task: Option<JoinHandle<()>>,
}

impl Doorbell {
    /// `None` for a relay that is not to listen.
    pub(super) fn install(idempotency: &Idempotency, options: Option<PgConnectOptions>) -> Self {
        let rung = Arc::new(Notify::new());
        let (hears, heard) = watch::channel(false);
        let task = options.map(|options| {
            let wire = Wire { idempotency: idempotency.clone(), options, rung: Arc::clone(&rung), hears };
            tokio::spawn(wire.listen())
        });
        Self { rung, hears: heard, task }
    }

    pub(super) fn hears(&self) -> bool {
        *self.hears.borrow()
    }

    /// A message was committed, or the line was lost.
    pub(super) async fn rung(&self) {
        self.rung.notified().await;
    }
}

impl Drop for Doorbell {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

struct Wire {
    idempotency: Idempotency,
    options: PgConnectOptions,
    rung: Arc<Notify>,
    hears: watch::Sender<bool>,
}

impl Wire {
    async fn listen(self) {
        let mut pause = FIRST_PAUSE;
        loop {
            if let Err(error) = self.listen_once().await {
                tracing::debug!(%error, "a relay cannot listen");
            }
            let heard = self.hears.send_replace(false);
            self.rung.notify_one();
            pause = if heard { FIRST_PAUSE } else { (pause * 2).min(LAST_PAUSE) };
            sleep(pause.mul_f64(0.75 + fastrand::f64() / 2.0)).await;
        }
    }

    /// Until the connection is lost.
    async fn listen_once(&self) -> Result<(), Error> {
        let channel = &self.idempotency.outbox_statements().channel;
        // Not the application's pool: it would be one connection short for ever.
        let limit = self.idempotency.settings().connection_timeout;
        let own = PgPoolOptions::new().max_connections(1).max_lifetime(None).idle_timeout(None).acquire_timeout(limit);
        let mut listener =
            PgListener::connect_with(&own.connect_lazy_with(self.options.clone())).await.map_err(Error::Database)?;
        listener.eager_reconnect(false);
        listener.listen(channel).await.map_err(Error::Database)?;
        if !self.probe(&mut listener).await? {
            tracing::info!(
                "notifications do not arrive, as behind a pooler: the relay looks for messages at its interval"
            );
            return Ok(());
        }
        self.hears.send_replace(true);
        self.rung.notify_one();
        while listener.try_recv().await.map_err(Error::Database)?.is_some() {
            self.rung.notify_one();
        }
        Ok(())
    }

    /// A pooler says yes to LISTEN and forgets it.
    async fn probe(&self, listener: &mut PgListener) -> Result<bool, Error> {
        let probe = uuid::Uuid::new_v4().to_string();
        let connection = self.idempotency.connection().await?;
        let notify = || self.idempotency.query(&self.idempotency.outbox_statements().probe).bind(&probe);
        self.idempotency.execute(connection, notify).await.map_err(|error| self.idempotency.not_executed(error))?;
        let arrives = async {
            while let Some(notification) = listener.try_recv().await? {
                if notification.payload() == probe {
                    return Ok(true);
                }
            }
            Ok(false)
        };
        timeout(PROBE, arrives).await.unwrap_or(Ok(false)).map_err(Error::Database)
    }
}
