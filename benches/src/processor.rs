//! Processor time, which other programs on the machine disturb less than throughput.

use std::fs;

use sqlx::PgPool;

use crate::Result;

/// This process and the server processes that its pool talks to.
#[derive(Debug)]
pub struct Processor {
    processes: Vec<String>,
}

impl Processor {
    /// The processes behind the connections that a pool has by now.
    ///
    /// # Errors
    /// If the server does not answer.
    pub async fn of(pool: &PgPool) -> Result<Self> {
        let backends = "SELECT pid FROM pg_stat_activity \
                        WHERE datname = current_database() AND backend_type = 'client backend'";
        let backends: Vec<i32> = sqlx::query_scalar(backends).fetch_all(pool).await?;
        let processes = backends.iter().map(ToString::to_string).chain(["self".to_owned()]);
        Ok(Self { processes: processes.collect() })
    }

    /// How long they have run so far, in microseconds; `None` where the system does not say.
    #[must_use]
    pub fn microseconds(&self) -> Option<f64> {
        self.processes.iter().map(|process| microseconds(process)).sum()
    }
}

/// The sum over a process's threads. Linux counts it in nanoseconds.
fn microseconds(process: &str) -> Option<f64> {
    let threads = fs::read_dir(format!("/proc/{process}/task")).ok()?;
    let nanoseconds = threads.flatten().filter_map(|thread| {
        let counts = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        counts.split(' ').next()?.parse::<f64>().ok()
    });
    Some(nanoseconds.sum::<f64>() / 1_000.0)
}
