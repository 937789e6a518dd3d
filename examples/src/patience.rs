//! Waiting for what must come.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::Error;

/// Waits until `reached` says so.
///
/// # Errors
/// Its own, and after a minute one that names `what` did not come.
pub async fn until<R>(what: &str, reached: impl Fn() -> R) -> Result<(), Error>
where
    R: Future<Output = Result<bool, Error>>,
{
    let deadline = Instant::now() + Duration::from_secs(60);
    while !reached().await? {
        if Instant::now() > deadline {
            return Err(format!("a minute was too short until {what}").into());
        }
        sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}
