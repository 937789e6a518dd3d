//! A database with an instance of the application over it, in which one trial runs at a time.

use std::time::{Duration, Instant};

use axum::Router;
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;

use crate::TestDatabase;
use crate::client::{Answer, Attempt, Backoff, Finality, send};
use crate::proxy::Proxy;
use crate::subject::Subject;

/// How long a client keeps trying before a key counts as stuck, unless it is told otherwise.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// How long a client waits for one answer.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(15);

pub(crate) struct Lane {
    pub(crate) proxy: Proxy,
    /// Past the proxy, for looking at the effects.
    pub(crate) direct: PgPool,
    /// Another process of the application, which nothing happens to.
    pub(crate) other: Router,
    // Last, because pools are closed before their database is dropped.
    _database: TestDatabase,
}

/// A process of the application whose connections go through the proxy. Where its pool is no larger than it must be, it meets
/// a connection that is left broken, or in a transaction, again.
pub(crate) struct Victim {
    pub(crate) app: Router,
    pub(crate) pool: PgPool,
}

impl Lane {
    pub(crate) async fn open(subject: &Subject<'_>) -> Result<Self, sqlx::Error> {
        let database = TestDatabase::create().await?;
        let direct = database.pool_with(PgPoolOptions::new().max_connections(2));
        let other = (subject.app)(database.pool_with(PgPoolOptions::new().max_connections(5))).await;
        let proxy = Proxy::start(&database.url())?;
        Ok(Self { proxy, direct, other, _database: database })
    }

    pub(crate) async fn victim(&self, subject: &Subject<'_>, connections: u32) -> Victim {
        self.victim_that_waits(subject, connections, TIMEOUT).await
    }

    /// `limit` is how long its pool lets a request wait for a connection.
    pub(crate) async fn victim_that_waits(&self, subject: &Subject<'_>, connections: u32, limit: Duration) -> Victim {
        let pool = self.proxy.pool_with(PgPoolOptions::new().max_connections(connections).acquire_timeout(limit));
        let app = (subject.app)(pool.clone()).await;
        drop(pool.acquire().await.expect("the proxied database must accept connections"));
        let victim = Victim { app, pool };
        victim.idle(PATIENCE).await;
        victim
    }

    /// Waits until nothing of the trial goes on. What does go on after `patience`, if anything.
    pub(crate) async fn settle(&self, patience: Duration) -> Option<String> {
        let begin = Instant::now();
        loop {
            let open = self.open_sessions().await;
            if open.is_empty() && !self.proxy.is_stalling() {
                return None;
            }
            if begin.elapsed() > patience {
                return Some(open.join(", "));
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Whether a session waits for a row that another one has changed, and none for a lock of another kind.
    pub(crate) async fn waits_for_rows(&self) -> bool {
        let select = "SELECT coalesce(bool_and(wait_event IN ('transactionid', 'tuple')), false) FROM pg_stat_activity \
                      WHERE datname = current_database() AND wait_event_type = 'Lock'";
        sqlx::query_scalar(select).fetch_one(&self.direct).await.expect("pg_stat_activity must be readable")
    }

    /// The states of the sessions that are in a transaction.
    async fn open_sessions(&self) -> Vec<String> {
        let select = "SELECT state FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() \
                      AND backend_type = 'client backend' AND state <> 'idle'";
        sqlx::query_scalar(select).fetch_all(&self.direct).await.expect("pg_stat_activity must be readable")
    }
}

impl Victim {
    /// Waits until the pool's connections have been given back, which happens in the background.
    pub(crate) async fn idle(&self, patience: Duration) -> bool {
        let begin = Instant::now();
        while self.pool.size() as usize > self.pool.num_idle() {
            if begin.elapsed() > patience {
                return false;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        true
    }

    /// The next user of each of the pool's connections must not be in somebody's transaction: what it writes would be
    /// somebody else's to commit.
    pub(crate) async fn pool_fault(&self) -> Option<String> {
        let mut held = Vec::new();
        for _ in 0..self.pool.size().max(1) {
            let mut connection = match self.pool.acquire().await {
                Ok(connection) => connection,
                Err(error) => return Some(format!("the pool gives no connection: {error}")),
            };
            let mut numbers = Vec::new();
            for _ in 0..2 {
                let number = "SELECT pg_current_xact_id()::text";
                match sqlx::query_scalar::<_, String>(number).fetch_one(&mut *connection).await {
                    Ok(number) => numbers.push(number),
                    Err(error) => return Some(format!("the next query failed: {error}")),
                }
            }
            if numbers[0] == numbers[1] {
                return Some("the pool's next user writes into a transaction that was left open".to_owned());
            }
            held.push(connection);
        }
        None
    }

    pub(crate) async fn close(&self) {
        // A connection that is never given back would be waited for.
        let _ = tokio::time::timeout(Duration::from_secs(1), self.pool.close()).await;
    }
}

/// Sends the same request to the given processes in turn, until one gives a final answer.
pub(crate) async fn retry_until_final(
    subject: &Subject<'_>,
    key: &str,
    apps: &[&Router],
    finality: Finality,
    attempts: &mut Vec<Attempt>,
) -> Option<Answer> {
    let mut backoff = Backoff::new(subject.patience);
    for app in apps.iter().cycle() {
        let attempt = send(app, subject.request(key), TIMEOUT).await;
        attempts.push(attempt.clone());
        if let Some(answer) = attempt.into_final(finality) {
            return Some(answer);
        }
        if !backoff.wait().await {
            break;
        }
    }
    None
}
