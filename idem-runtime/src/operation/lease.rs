use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::task::AbortHandle;

use crate::claim::Claim;

/// Holds a claim while its handler runs: renewed at every third of its length, until dropped.
#[derive(Debug)]
pub(super) struct Lease {
    lost: Arc<AtomicBool>,
    renewal: AbortHandle,
}

impl Lease {
    pub(super) fn renew(claim: &Claim, token: i64) -> Self {
        let lost = Arc::new(AtomicBool::new(false));
        let renewal = tokio::spawn(keep(claim.clone(), token, Arc::clone(&lost))).abort_handle();
        Self { lost, renewal }
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

async fn keep(claim: Claim, token: i64, lost: Arc<AtomicBool>) {
    let mut interval = tokio::time::interval(claim.lease / 3);
    interval.tick().await;
    loop {
        interval.tick().await;
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
    let mut connection = idempotency.connection().await?;
    let renew = sqlx::query(idempotency.statements().renew.clone())
        .bind(&*claim.id.scope)
        .bind(&*claim.id.key)
        .bind(token)
        .bind(claim.lease.as_secs_f64())
        .persistent(idempotency.settings().prepared_statements);
    let renewed = renew.execute(&mut *connection).await.map_err(|error| idempotency.refused(error))?;
    Ok(renewed.rows_affected() == 1)
}
