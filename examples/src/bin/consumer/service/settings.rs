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
}

impl Settings {
    /// With the defaults.
    pub(crate) fn new(redis: impl Into<String>) -> Self {
        Self { redis: redis.into(), patience: Duration::from_secs(1), inbox: true }
    }

    /// From the environment; `None` without a broker.
    pub(crate) fn from_environment() -> Option<Self> {
        let mut settings = Self::new(std::env::var("REDIS").ok()?);
        settings.inbox = std::env::var("INBOX").map_or(true, |inbox| inbox != "off");
        Some(settings)
    }
}
