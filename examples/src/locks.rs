//! Knowing that a handler stands in its middle, without a hook in it.

use std::time::Duration;

use sqlx::PgPool;
use tokio::time::{Instant, sleep};

use crate::Error;

const PATIENCE: Duration = Duration::from_secs(30);

/// Waits until a handler waits for a row of this database that the tour has locked.
///
/// # Errors
/// If none does within 30 seconds.
pub async fn until_a_handler_waits(pool: &PgPool) -> Result<(), Error> {
    let waiting =
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    let deadline = Instant::now() + PATIENCE;
    while sqlx::query_scalar::<_, i64>(waiting).fetch_one(pool).await? == 0 {
        if Instant::now() > deadline {
            return Err("no handler came to the row that the tour has locked".into());
        }
        sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}
