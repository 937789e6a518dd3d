//! What an application has settled, checked once: the values behind a [`Builder`](crate::Builder).

use std::time::Duration;

use http::{HeaderName, StatusCode};

use crate::error::{Error, PROBLEM_BASE_URL};

/// The longest lease, retention and other duration: one year.
pub(crate) const MAX_DURATION: Duration = Duration::from_secs(365 * 24 * 60 * 60);

#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) schema: String,
    pub(crate) header: HeaderName,
    pub(crate) replay_header: HeaderName,
    pub(crate) mismatch_status: u16,
    pub(crate) problem_base_url: String,
    pub(crate) lease: Duration,
    pub(crate) retry_after: Duration,
    pub(crate) connection_timeout: Duration,
    pub(crate) response_limit: usize,
    pub(crate) never_stored: Vec<u16>,
    pub(crate) shutdown_limit: Duration,
    /// 0: half of the pool.
    pub(crate) max_detached: usize,
    pub(crate) sweep_interval: Duration,
    pub(crate) sweep_batch: u32,
    pub(crate) prepared_statements: bool,
    pub(crate) pool_checks: bool,
    pub(crate) recovery_interval: Duration,
    pub(crate) recovery_attempts: u32,
    pub(crate) relay_interval: Duration,
    pub(crate) relay_lease: Duration,
    pub(crate) delivery_timeout: Duration,
    pub(crate) delivery_attempts: u32,
    pub(crate) outbox_retention: Duration,
    pub(crate) resent_headers: Vec<HeaderName>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            schema: "idem".to_owned(),
            header: HeaderName::from_static("idempotency-key"),
            replay_header: HeaderName::from_static("idempotency-replayed"),
            mismatch_status: 422,
            problem_base_url: PROBLEM_BASE_URL.to_owned(),
            lease: Duration::from_secs(60),
            retry_after: Duration::from_secs(1),
            connection_timeout: Duration::from_secs(5),
            response_limit: 1024 * 1024,
            never_stored: vec![408, 425, 429],
            shutdown_limit: Duration::from_secs(30),
            max_detached: 0,
            sweep_interval: Duration::from_secs(10),
            sweep_batch: 1_000,
            prepared_statements: true,
            pool_checks: true,
            recovery_interval: Duration::from_secs(1),
            recovery_attempts: 10,
            relay_interval: Duration::from_millis(500),
            relay_lease: Duration::from_secs(15),
            delivery_timeout: Duration::from_secs(30),
            delivery_attempts: 10,
            outbox_retention: Duration::from_secs(7 * 24 * 60 * 60),
            resent_headers: vec![http::header::CONTENT_TYPE, http::header::ACCEPT],
        }
    }
}

impl Settings {
    pub(crate) fn check(&self) -> Result<(), Error> {
        check(
            "schema",
            (1..=63).contains(&self.schema.len()) && !self.schema.contains('\0'),
            "must be 1 to 63 bytes without NUL",
        )?;
        check("mismatch_status", [409, 422].contains(&self.mismatch_status), "must be 422 or 409")?;
        let absolute = self
            .problem_base_url
            .parse::<http::Uri>()
            .is_ok_and(|url| matches!(url.scheme_str(), Some("http" | "https")));
        check("problem_base_url", absolute, "must be an absolute `http` or `https` URL")?;
        check("response_limit", self.response_limit <= 256 * 1024 * 1024, "must be at most 256 MiB")?;
        check("sweep_batch", (1..=100_000).contains(&self.sweep_batch), "must be 1 to 100,000 rows")?;
        check("recovery_attempts", (1..=1_000).contains(&self.recovery_attempts), "must be 1 to 1,000")?;
        check("delivery_attempts", (1..=1_000).contains(&self.delivery_attempts), "must be 1 to 1,000")?;
        let storable = self.never_stored.iter().all(|status| StatusCode::from_u16(*status).is_ok());
        check("never_store", storable, "must hold HTTP statuses, 100 to 999")?;
        let second = Duration::from_secs(1);
        for (name, duration, least) in [
            ("lease", self.lease, second),
            ("retry_after", self.retry_after, second),
            ("connection_timeout", self.connection_timeout, Duration::from_nanos(1)),
            ("shutdown_limit", self.shutdown_limit, Duration::from_nanos(1)),
            ("sweep_interval", self.sweep_interval, Duration::from_nanos(1)),
            ("recovery_interval", self.recovery_interval, Duration::from_nanos(1)),
            ("relay_interval", self.relay_interval, Duration::from_nanos(1)),
            ("relay_lease", self.relay_lease, second),
            ("delivery_timeout", self.delivery_timeout, Duration::from_nanos(1)),
            ("outbox_retention", self.outbox_retention, Duration::from_nanos(1)),
        ] {
            check(name, (least..=MAX_DURATION).contains(&duration), &format!("must be {least:?} to 1 year"))?;
        }
        Ok(())
    }

    #[cfg(feature = "axum")]
    pub(crate) fn mismatch_status(&self) -> StatusCode {
        StatusCode::from_u16(self.mismatch_status).unwrap_or(StatusCode::UNPROCESSABLE_ENTITY)
    }
}

fn check(name: &'static str, holds: bool, problem: &str) -> Result<(), Error> {
    if holds { Ok(()) } else { Err(Error::Setting { name, problem: problem.to_owned() }) }
}
