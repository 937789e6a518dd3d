//! A handler whose client has hung up goes on outside of every limit that the application sets around its requests, so their
//! number has a bound of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use tokio::sync::watch;
use tokio::time::timeout;

use crate::error::Error;
use crate::idempotency::Idempotency;

/// How many handlers run whose clients have hung up.
#[derive(Debug)]
pub(crate) struct Detached(watch::Sender<usize>);

impl Default for Detached {
    fn default() -> Self {
        Self(watch::channel(0).0)
    }
}

const WAITING: u8 = 0;
const RUNNING: u8 = 1;
const GONE: u8 = 2;
const DETACHED: u8 = 3;
const ENDED: u8 = 4;

/// The task's end of the connection between a request and the task that runs its handler.
pub(crate) struct Attached {
    state: Arc<AtomicU8>,
    idempotency: Idempotency,
}

/// The request's end. Dropped before the task has ended, the client is gone.
pub(crate) struct Client {
    state: Arc<AtomicU8>,
    idempotency: Idempotency,
}

impl Idempotency {
    pub(crate) fn attach(&self) -> (Attached, Client) {
        let state = Arc::new(AtomicU8::new(WAITING));
        let client = Client { state: Arc::clone(&state), idempotency: self.clone() };
        (Attached { state, idempotency: self.clone() }, client)
    }
}

impl Attached {
    /// Waits, as long as for a connection, until few enough handlers run without a client.
    pub(crate) async fn wait_for_room(&self) -> Result<(), Error> {
        let settings = self.idempotency.settings();
        let mut detached = self.idempotency.detached().0.subscribe();
        let room = detached.wait_for(|count| *count < settings.max_detached);
        match timeout(settings.connection_timeout, room).await {
            Ok(_) if self.state.load(Ordering::Acquire) == GONE => Err(Error::Abandoned),
            Ok(_) => Ok(()),
            Err(_) => Err(self.idempotency.unavailable(sqlx::Error::PoolTimedOut)),
        }
    }

    /// The handler may begin, unless its client is gone already.
    pub(crate) fn begin(&self) -> bool {
        self.state.compare_exchange(WAITING, RUNNING, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        if self.state.swap(ENDED, Ordering::AcqRel) == DETACHED {
            self.idempotency.detached().0.send_modify(|count| *count -= 1);
        }
    }
}

impl Client {
    /// The task has ended, and its client has waited for it.
    pub(crate) fn stays(self) {
        self.state.store(ENDED, Ordering::Release);
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if self.state.compare_exchange(WAITING, GONE, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            return;
        }
        // Counted first: the task's end takes back what it finds.
        self.idempotency.detached().0.send_modify(|count| *count += 1);
        if self.state.compare_exchange(RUNNING, DETACHED, Ordering::AcqRel, Ordering::Acquire).is_err() {
            self.idempotency.detached().0.send_modify(|count| *count -= 1);
        }
    }
}
