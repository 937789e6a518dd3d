//! Where the broker is, and how patient the consumer is.

use std::time::Duration;

/// Read from the environment.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// `REDIS`: the broker's address.
    pub(crate) redis: String,
    /// How long a message may sit with a consumer before another takes it over.
    pub(crate) patience: Duration,
    /// `INBOX`: whether payments go through the inbox. Only the tour's control switches it off.
    pub(crate) inbox: bool,
    /// `ARCHIVE_PAUSE`: how long the archive takes over a copy, in milliseconds.
    pub(crate) archive_pause: Duration,
    /// `POISON`: the payment whose receipt ends the process that delivers it.
    pub(crate) poison: Option<String>,
}

impl Settings {
    /// With the defaults.
    pub(crate) fn new(redis: impl Into<String>) -> Self {
        Self {
            redis: redis.into(),
            patience: Duration::from_secs(1),
            inbox: true,
            archive_pause: Duration::ZERO,
            poison: None,
        }
    }

    /// From the environment; `None` without a broker.
    pub(crate) fn from_environment() -> Option<Self> {
        let mut settings = Self::new(std::env::var("REDIS").ok()?);
        settings.inbox = std::env::var("INBOX").map_or(true, |inbox| inbox != "off");
        let pause = std::env::var("ARCHIVE_PAUSE").ok().and_then(|pause| pause.parse().ok());
        settings.archive_pause = Duration::from_millis(pause.unwrap_or_default());
        settings.poison = std::env::var("POISON").ok();
        Some(settings)
    }
}
