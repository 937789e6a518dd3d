//! The limits that every send keeps: how often, how long, how far apart.
//!
//! A client that retries for ever is an outage of its own. So each limit has a default, each can be set, and none can
//! be set to "never": zero and what amounts to for ever are refused where they are set.

use std::fmt;
use std::time::Duration;

/// How often a request is sent, how far apart, and how long all of it may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// How often a request is sent at most, the first attempt included. Default 4; 1 to 100.
    pub attempts: u32,
    /// The bound of the first wait; it doubles with each attempt. Default 100 ms; more than zero, at most `cap`.
    pub base: Duration,
    /// The greatest bound of a wait. Default 5 s; at most an hour. `Retry-After` may ask for more.
    pub cap: Duration,
    /// How long connecting may take, TLS handshake included: past it the request was certainly not sent. Default 1 s; at
    /// most an hour, and never more than four fifths of `attempt_timeout`. It is the connections', so one request
    /// cannot change it.
    pub connect_timeout: Duration,
    /// How long one attempt may take, from connecting to the end of the answer's body. Default 3 s; at most an hour.
    pub attempt_timeout: Duration,
    /// How long all attempts and the waits between them may take together. Default 15 s; at most a day.
    pub deadline: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            attempts: 4,
            base: Duration::from_millis(100),
            cap: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(1),
            attempt_timeout: Duration::from_secs(3),
            deadline: Duration::from_secs(15),
        }
    }
}

const HOUR: Duration = Duration::from_secs(60 * 60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

impl Limits {
    pub(crate) fn check(&self) -> Result<(), SettingError> {
        within("attempts", self.attempts, 1, 100)?;
        duration("base", self.base, HOUR)?;
        duration("cap", self.cap, HOUR)?;
        duration("connect_timeout", self.connect_timeout, HOUR)?;
        duration("attempt_timeout", self.attempt_timeout, HOUR)?;
        duration("deadline", self.deadline, DAY)?;
        if self.base > self.cap {
            return Err(SettingError::new(format!("`base` must be at most `cap`; {:?} > {:?}", self.base, self.cap)));
        }
        Ok(())
    }
}

impl Limits {
    /// Connecting must be over before the attempt is, or it would end as "may have happened".
    pub(crate) fn time_to_connect(&self) -> Duration {
        self.connect_timeout.min(self.attempt_timeout * 4 / 5)
    }
}

pub(crate) fn within<T: PartialOrd + fmt::Display>(
    name: &str,
    value: T,
    least: T,
    most: T,
) -> Result<(), SettingError> {
    if value >= least && value <= most {
        return Ok(());
    }
    Err(SettingError::new(format!("`{name}` must be {least} to {most}; it is {value}")))
}

pub(crate) fn duration(name: &str, value: Duration, most: Duration) -> Result<(), SettingError> {
    if !value.is_zero() && value <= most {
        return Ok(());
    }
    Err(SettingError::new(format!("`{name}` must be more than zero and at most {most:?}; it is {value:?}")))
}

/// What one request does otherwise than its client: unset fields keep the client's limits.
///
/// [`crate::RequestBuilder`] sets it; with a middleware stack of your own, put it among the request's extensions:
/// `request.with_extension(Overrides::new().attempts(2))`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    pub(crate) attempts: Option<u32>,
    pub(crate) back_off: Option<(Duration, Duration)>,
    pub(crate) attempt_timeout: Option<Duration>,
    pub(crate) deadline: Option<Duration>,
    pub(crate) operation: Option<String>,
}

impl Overrides {
    /// Overrides nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// See [`Limits::attempts`].
    #[must_use]
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.attempts = Some(attempts);
        self
    }

    /// See [`Limits::base`] and [`Limits::cap`].
    #[must_use]
    pub fn back_off(mut self, base: Duration, cap: Duration) -> Self {
        self.back_off = Some((base, cap));
        self
    }

    /// See [`Limits::attempt_timeout`].
    #[must_use]
    pub fn attempt_timeout(mut self, timeout: Duration) -> Self {
        self.attempt_timeout = Some(timeout);
        self
    }

    /// See [`Limits::deadline`].
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Names the operation in the journal and in errors. Without it the name is the one that the key was derived
    /// from, else the method and path.
    #[must_use]
    pub fn operation(mut self, name: impl Into<String>) -> Self {
        self.operation = Some(name.into());
        self
    }

    pub(crate) fn apply(&self, limits: Limits) -> Result<Limits, SettingError> {
        let (base, cap) = self.back_off.unwrap_or((limits.base, limits.cap));
        let applied = Limits {
            attempts: self.attempts.unwrap_or(limits.attempts),
            base,
            cap,
            connect_timeout: limits.connect_timeout,
            attempt_timeout: self.attempt_timeout.unwrap_or(limits.attempt_timeout),
            deadline: self.deadline.unwrap_or(limits.deadline),
        };
        applied.check()?;
        Ok(applied)
    }
}

/// A setting is out of its range. The text says which, what it must be, and what it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingError(String);

impl SettingError {
    pub(crate) fn new(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Display for SettingError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for SettingError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_limit_can_be_switched_off() {
        let good = Limits::default();
        good.check().unwrap();
        let bad = [
            Limits { attempts: 0, ..good },
            Limits { attempts: u32::MAX, ..good },
            Limits { base: Duration::ZERO, ..good },
            Limits { base: Duration::from_secs(6), ..good },
            Limits { cap: Duration::MAX, ..good },
            Limits { connect_timeout: Duration::ZERO, ..good },
            Limits { connect_timeout: Duration::MAX, ..good },
            Limits { attempt_timeout: Duration::ZERO, ..good },
            Limits { attempt_timeout: Duration::MAX, ..good },
            Limits { deadline: Duration::ZERO, ..good },
            Limits { deadline: Duration::MAX, ..good },
        ];
        for limits in bad {
            assert!(limits.check().is_err(), "{limits:?}");
        }
    }

    #[test]
    fn overrides_change_what_they_name_and_are_checked() {
        let client = Limits::default();
        let applied = Overrides::new().attempts(2).deadline(Duration::from_secs(1)).apply(client).unwrap();
        assert_eq!(applied, Limits { attempts: 2, deadline: Duration::from_secs(1), ..client });
        let refused = Overrides::new().deadline(Duration::ZERO).apply(client).unwrap_err();
        assert_eq!(refused.to_string(), "`deadline` must be more than zero and at most 86400s; it is 0ns");
    }
}
