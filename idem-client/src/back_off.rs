//! When to try again.
//!
//! Clients that failed together and wait equally long come back together, and fail together again. Full jitter
//! spreads them over the whole interval, and the interval doubles, so that a server that is coming up meets a trickle
//! instead of a wall. When the server itself says how long to wait, it knows better.

use std::time::{Duration, SystemTime};

use http::HeaderMap;
use http::header::{DATE, RETRY_AFTER};

/// The longest wait after `failed` failed attempts: `base · 2^(failed − 1)`, at most `cap`.
///
/// ```
/// use std::time::Duration;
///
/// let (base, cap) = (Duration::from_millis(100), Duration::from_secs(5));
/// assert_eq!(idem_client::back_off::bound(base, cap, 1), Duration::from_millis(100));
/// assert_eq!(idem_client::back_off::bound(base, cap, 3), Duration::from_millis(400));
/// assert_eq!(idem_client::back_off::bound(base, cap, 99), cap);
/// ```
#[must_use]
pub fn bound(base: Duration, cap: Duration, failed: u32) -> Duration {
    let factor = 1_u32.checked_shl(failed.saturating_sub(1)).unwrap_or(u32::MAX);
    base.saturating_mul(factor).min(cap)
}

/// The wait after `failed` failed attempts: uniform between zero and [`bound`].
#[must_use]
pub fn full_jitter(base: Duration, cap: Duration, failed: u32) -> Duration {
    up_to(bound(base, cap, failed))
}

/// A uniform draw between zero and `most`.
pub(crate) fn up_to(most: Duration) -> Duration {
    let nanoseconds = u64::try_from(most.as_nanos()).unwrap_or(u64::MAX);
    Duration::from_nanos(fastrand::u64(0..=nanoseconds))
}

/// How long the server asks to wait, from `Retry-After`: seconds, or an HTTP date.
///
/// A date is compared with the answer's own `Date`, so that a clock that differs from the server's does not matter;
/// without one it is compared with `now`. A date in the past is no wait. A line that is neither form is ignored, and
/// `None` says that no line helps.
#[must_use]
pub fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let sent_at = headers.get(DATE).and_then(|date| httpdate::parse_http_date(date.to_str().ok()?.trim()).ok());
    headers.get_all(RETRY_AFTER).iter().find_map(|value| {
        let text = value.to_str().ok()?.trim();
        if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
            return Some(Duration::from_secs(text.parse().unwrap_or(u64::MAX)));
        }
        let at = httpdate::parse_http_date(text).ok()?;
        Some(at.duration_since(sent_at.unwrap_or(now)).unwrap_or(Duration::ZERO))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn headers(lines: &[(http::header::HeaderName, &str)]) -> HeaderMap {
        lines.iter().map(|(name, value)| (name.clone(), HeaderValue::from_str(value).unwrap())).collect()
    }

    #[test]
    fn the_bound_doubles_up_to_the_cap_and_never_overflows() {
        let bounds: Vec<_> = [0, 1, 2, 3, 6, 7, 32, 33, u32::MAX]
            .map(|failed| bound(Duration::from_millis(100), Duration::from_secs(5), failed).as_millis())
            .into();
        assert_eq!(bounds, [100, 100, 200, 400, 3200, 5000, 5000, 5000, 5000]);
        assert_eq!(bound(Duration::MAX, Duration::MAX, 40), Duration::MAX);
    }

    #[test]
    fn both_forms_of_retry_after_are_read() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        let read = |value| retry_after(&headers(&[(RETRY_AFTER, value)]), now);
        assert_eq!(read("0"), Some(Duration::ZERO));
        assert_eq!(read(" 120 "), Some(Duration::from_secs(120)));
        assert_eq!(read("Sun, 06 Nov 1994 08:49:39 GMT"), Some(Duration::from_secs(2)));
        assert_eq!(read("Sunday, 06-Nov-94 08:49:39 GMT"), Some(Duration::from_secs(2)));
        assert_eq!(read("Sun Nov  6 08:49:39 1994"), Some(Duration::from_secs(2)));
        assert_eq!(read("Sun, 06 Nov 1994 08:49:00 GMT"), Some(Duration::ZERO));
        assert_eq!(read("99999999999999999999999"), Some(Duration::from_secs(u64::MAX)));
        for nonsense in ["", "-1", "1.5", "soon", "+1"] {
            assert_eq!(read(nonsense), None, "{nonsense}");
        }
    }

    #[test]
    fn a_date_is_measured_by_the_servers_clock() {
        let lines = [(DATE, "Sun, 06 Nov 1994 08:49:37 GMT"), (RETRY_AFTER, "Sun, 06 Nov 1994 08:49:40 GMT")];
        let skewed = SystemTime::UNIX_EPOCH + Duration::from_secs(1_900_000_000);
        assert_eq!(retry_after(&headers(&lines), skewed), Some(Duration::from_secs(3)));
    }
}
