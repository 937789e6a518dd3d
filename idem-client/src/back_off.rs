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

/// The shortest wait that an answer can ask for. A server that says "now" to a thousand clients at once would meet them
/// all within milliseconds, so less than this, zero, and what is past count as this.
pub const LEAST_ASKED: Duration = Duration::from_millis(100);

/// The headers that ask in milliseconds: they are finer, so they win over `Retry-After`.
const IN_MILLISECONDS: [&str; 3] = ["retry-after-ms", "x-ms-retry-after-ms", "x-amz-retry-after"];

/// How long the server asks to wait, from `retry-after-ms` or `Retry-After`; at least [`LEAST_ASKED`].
///
/// `Retry-After` is a number of seconds (also `1.5`), or a date. A date is compared with the answer's own `Date`, so that
/// a clock that differs from the server's does not matter; without one it is compared with `now`. A negative number and
/// a date in the past ask for no wait. A line that is none of these is ignored, and `None` says that no line helps.
#[must_use]
pub fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let lines = |name: &str| headers.get_all(name).iter().filter_map(|value| value.to_str().ok()).map(str::trim);
    let milliseconds = IN_MILLISECONDS.into_iter().flat_map(lines).find_map(|text| number(text, 0.001));
    let asked = milliseconds.or_else(|| {
        let sent_at = lines(DATE.as_str()).find_map(date);
        lines(RETRY_AFTER.as_str()).find_map(|text| {
            let until = |at: SystemTime| at.duration_since(sent_at.unwrap_or(now)).unwrap_or(Duration::ZERO);
            number(text, 1.0).or_else(|| date(text).map(until))
        })
    });
    asked.map(|asked| asked.max(LEAST_ASKED))
}

/// A decimal number of units; less than none is none, and more than can be counted is for ever.
fn number(text: &str, unit_in_seconds: f64) -> Option<Duration> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let decimal = digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    if !decimal || !digits.bytes().any(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let seconds = text.parse::<f64>().ok()? * unit_in_seconds;
    Some(Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX))
}

/// The three forms of HTTP, and the two ways in which servers write their time zone instead of `GMT`.
fn date(text: &str) -> Option<SystemTime> {
    let zoned = ["+0000", "UTC"].into_iter().find_map(|zone| Some(format!("{}GMT", text.strip_suffix(zone)?)));
    httpdate::parse_http_date(zoned.as_deref().unwrap_or(text)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderName, HeaderValue};

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
    fn every_form_of_retry_after_is_read() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        let read = |value| retry_after(&headers(&[(RETRY_AFTER, value)]), now);
        let seconds = |seconds| Some(Duration::from_secs_f64(seconds));
        assert_eq!(read(" 120 "), seconds(120.0));
        assert_eq!(read("1.5"), seconds(1.5));
        for date in [
            "Sun, 06 Nov 1994 08:49:39 GMT",
            "Sun, 06 Nov 1994 08:49:39 UTC",
            "Sun, 06 Nov 1994 08:49:39 +0000",
            "Sunday, 06-Nov-94 08:49:39 GMT",
            "Sun Nov  6 08:49:39 1994",
        ] {
            assert_eq!(read(date), seconds(2.0), "{date}");
        }
        assert_eq!(read("99999999999999999999999"), Some(Duration::MAX));
        for nonsense in ["", "soon", "+1", ".", "-", "1,5", "1e3", "NaN", "inf", "1.2.3", "0x10"] {
            assert_eq!(read(nonsense), None, "{nonsense}");
        }
    }

    #[test]
    fn no_answer_can_ask_for_a_retry_within_milliseconds() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        for soon in
            ["0", "0.0", "0.001", "-1", "-1.5", "-0", "Sun, 06 Nov 1994 08:49:00 GMT", "Sun, 06 Nov 1994 08:49:37 GMT"]
        {
            assert_eq!(retry_after(&headers(&[(RETRY_AFTER, soon)]), now), Some(LEAST_ASKED), "{soon}");
        }
        for soon in ["0", "1", "-20", "99.9"] {
            let line = (HeaderName::from_static("retry-after-ms"), soon);
            assert_eq!(retry_after(&headers(&[line]), now), Some(LEAST_ASKED), "{soon}");
        }
    }

    #[test]
    fn milliseconds_win_where_they_make_sense() {
        let read = |milliseconds| {
            let lines = [(RETRY_AFTER, "7"), (HeaderName::from_static("retry-after-ms"), milliseconds)];
            retry_after(&headers(&lines), SystemTime::now())
        };
        assert_eq!(read("250"), Some(Duration::from_millis(250)));
        assert_eq!(read("1500.5"), Some(Duration::from_micros(1_500_500)));
        assert_eq!(read("soon"), Some(Duration::from_secs(7)));
    }

    #[test]
    fn a_date_is_measured_by_the_servers_clock() {
        let lines = [(DATE, "Sun, 06 Nov 1994 08:49:37 GMT"), (RETRY_AFTER, "Sun, 06 Nov 1994 08:49:40 GMT")];
        let skewed = SystemTime::UNIX_EPOCH + Duration::from_secs(1_900_000_000);
        assert_eq!(retry_after(&headers(&lines), skewed), Some(Duration::from_secs(3)));
    }
}
