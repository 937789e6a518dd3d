use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::task::AbortHandle;

use crate::lifecycle::claim::Claim;

/// Holds a claim while its handler runs: renewed at every third of its length, until dropped.
#[derive(Debug)]
pub(super) struct Lease {
    lost: Arc<AtomicBool>,
    resting: Arc<AtomicBool>,
    renewal: AbortHandle,
}

/// Keeps a lease from being renewed, until dropped.
#[derive(Debug)]
pub(super) struct Rest(Arc<AtomicBool>);

impl Drop for Rest {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

impl Lease {
    pub(super) fn renew(claim: &Claim, token: i64) -> Self {
        let lost = Arc::new(AtomicBool::new(false));
        let resting = Arc::new(AtomicBool::new(false));
        let renewal = tokio::spawn(keep(claim.clone(), token, Arc::clone(&lost), Arc::clone(&resting))).abort_handle();
        Self { lost, resting, renewal }
    }

    /// For a transaction whose snapshot must find the claim's row unchanged at its end.
    pub(super) fn rest(&self) -> Rest {
        self.resting.store(true, Ordering::Relaxed);
        Rest(Arc::clone(&self.resting))
    }

    /// Whether a renewal found the claim taken over. Without a database nothing is known; the token decides.
    pub(super) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.renewal.abort();
    }
}

async fn keep(claim: Claim, token: i64, lost: Arc<AtomicBool>, resting: Arc<AtomicBool>) {
    let mut interval = tokio::time::interval(claim.lease / 3);
    interval.tick().await;
    loop {
        interval.tick().await;
        if resting.load(Ordering::Relaxed) {
            continue;
        }
        match renew(&claim, token).await {
            Ok(true) => {}
            Ok(false) => {
                lost.store(true, Ordering::Relaxed);
                return;
            }
            Err(error) => tracing::warn!(handler = claim.handler, %error, "a lease could not be renewed; trying again"),
        }
    }
}

async fn renew(claim: &Claim, token: i64) -> Result<bool, crate::Error> {
    let idempotency = &claim.idempotency;
    let connection = idempotency.connection().await?;
    let renew = || claim.about_key(&idempotency.statements().renew).bind(token).bind(claim.lease.as_secs_f64());
    let renewed = idempotency.execute(connection, renew).await.map_err(|error| idempotency.not_executed(error))?;
    Ok(renewed == 1)
}
