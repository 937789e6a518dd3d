//! Where the provider and the mail service are, and how patient the service is.

use std::time::Duration;

/// Read from the environment.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// `PROVIDER`: the payment provider's address.
    pub(crate) provider: String,
    /// `MAIL`: the mail service's address.
    pub(crate) mail: String,
    /// `PATIENCE`, in seconds: how long an operation of a process that died belongs to it. Default 60.
    pub(crate) patience: Duration,
    /// `COMPLETER`: whether this process finishes what clients have given up. Default `on`.
    pub(crate) completer: bool,
    /// `RECOVERY_ATTEMPTS`: how often, before a person is asked. Default 10.
    pub(crate) recovery_attempts: u32,
}

impl Settings {
    /// With the defaults.
    pub(crate) fn new(provider: impl Into<String>, mail: impl Into<String>) -> Self {
        let patience = Duration::from_secs(60);
        Self { provider: provider.into(), mail: mail.into(), patience, completer: true, recovery_attempts: 10 }
    }

    /// From the environment; `None` without a provider and a mail service.
    pub(crate) fn from_environment() -> Result<Option<Self>, idem_examples::Error> {
        let (Ok(provider), Ok(mail)) = (std::env::var("PROVIDER"), std::env::var("MAIL")) else { return Ok(None) };
        let mut settings = Self::new(provider, mail);
        if let Ok(patience) = std::env::var("PATIENCE") {
            settings.patience = Duration::from_secs(patience.parse()?);
        }
        if let Ok(attempts) = std::env::var("RECOVERY_ATTEMPTS") {
            settings.recovery_attempts = attempts.parse()?;
        }
        settings.completer = std::env::var("COMPLETER").map_or(true, |completer| completer != "off");
        Ok(Some(settings))
    }
}
