//! What can be counted exactly, however noisy the machine is: commits, round trips and bytes of the write-ahead log.

use std::time::Duration;

use idem_testing::TestDatabase;
use idem_testing::proxy::{Counts, Proxy};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;

use crate::Result;
use crate::application::{Application, fresh};
use crate::load::send;
use crate::stage::wal_position;

/// Nothing else may write to the log meanwhile.
pub(super) const SETTINGS: [(&str, &str); 2] = [("autovacuum", "off"), ("checkpoint_timeout", "1d")];

const WARM_UP: usize = 50;

/// What a number of requests took; everything below is per request.
pub(super) struct Cost {
    counts: Counts,
    wal_bytes: i64,
    requests: usize,
}

impl Cost {
    pub(super) fn commits(&self) -> f64 {
        self.each(self.counts.commits)
    }

    pub(super) fn round_trips(&self) -> f64 {
        self.each(self.counts.round_trips)
    }

    pub(super) fn statements(&self) -> f64 {
        self.each(self.counts.statements)
    }

    pub(super) fn wal_bytes(&self) -> f64 {
        self.wal_bytes as f64 / self.requests as f64
    }

    fn each(&self, count: u64) -> f64 {
        count as f64 / self.requests as f64
    }
}

/// Sends requests with fresh keys, one after another, and counts what goes over the wire and into the log.
pub(super) async fn count(path: &str, requests: usize, database: &TestDatabase, direct: &PgPool) -> Result<Cost> {
    let proxy = Proxy::start(&database.url())?;
    let pool = proxy.pool_with(PgPoolOptions::new().max_connections(1));
    let application = Application::over(pool.clone());
    for _ in 0..WARM_UP {
        send(&application.router, fresh(path)).await?;
        released(&pool).await;
    }
    let (counts, position) = (proxy.counts(), wal_position(direct).await?);
    for _ in 0..requests {
        send(&application.router, fresh(path)).await?;
        released(&pool).await;
    }
    let counts = proxy.counts() - counts;
    let wal_bytes = wal_position(direct).await? - position;
    pool.close().await;
    Ok(Cost { counts, wal_bytes, requests })
}

/// The pool takes a connection back in the background, and pings it first.
async fn released(pool: &PgPool) {
    while pool.num_idle() == 0 {
        tokio::time::sleep(Duration::from_micros(50)).await;
    }
}
