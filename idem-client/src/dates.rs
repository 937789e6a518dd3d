//! Dates and times as parts of a key: one spelling, whichever crate they come from.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::key::{Canonical, KeyPart};

const DAY: i64 = 24 * 60 * 60;

/// Year, month and day of a number of days since 1970-01-01, in the proleptic Gregorian calendar.
///
/// Years are counted from March, so that the leap day is a year's last, in cycles of 400 years of 146,097 days.
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let cycle = days.div_euclid(146_097);
    let day_of_cycle = days.rem_euclid(146_097);
    let year_of_cycle = (day_of_cycle - day_of_cycle / 1_460 + day_of_cycle / 36_524 - day_of_cycle / 146_096) / 365;
    let day_of_year = day_of_cycle - (365 * year_of_cycle + year_of_cycle / 4 - year_of_cycle / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = cycle * 400 + year_of_cycle + i64::from(month <= 2);
    (year, month, day)
}

fn date(year: i64, month: i64, day: i64) -> String {
    // RFC 3339 ends with the year 9999; what is outside of it is told apart by its sign, as ISO 8601 has it.
    if (0..=9_999).contains(&year) {
        format!("{year:04}-{month:02}-{day:02}")
    } else {
        format!("{year:+05}-{month:02}-{day:02}")
    }
}

fn time_of_day(seconds: i64, nanoseconds: u32) -> String {
    let whole = format!("{:02}:{:02}:{:02}", seconds / 3_600, seconds / 60 % 60, seconds % 60);
    match nanoseconds {
        0 => whole,
        _ if nanoseconds.is_multiple_of(1_000_000) => format!("{whole}.{:03}", nanoseconds / 1_000_000),
        _ if nanoseconds.is_multiple_of(1_000) => format!("{whole}.{:06}", nanoseconds / 1_000),
        _ => format!("{whole}.{nanoseconds:09}"),
    }
}

fn instant(to: &mut Canonical, seconds: i64, nanoseconds: u32) {
    let (year, month, day) = civil(seconds.div_euclid(DAY));
    let time = time_of_day(seconds.rem_euclid(DAY), nanoseconds);
    to.leaf(format!("{}T{time}Z", date(year, month, day)).as_bytes());
}

impl KeyPart for SystemTime {
    fn write(&self, to: &mut Canonical) {
        let whole = |seconds: u64| i64::try_from(seconds).unwrap_or(i64::MAX);
        match self.duration_since(UNIX_EPOCH) {
            Ok(since) => instant(to, whole(since.as_secs()), since.subsec_nanos()),
            Err(before) => {
                let before = before.duration();
                match before.subsec_nanos() {
                    0 => instant(to, -whole(before.as_secs()), 0),
                    nanoseconds => instant(to, -whole(before.as_secs()) - 1, 1_000_000_000 - nanoseconds),
                }
            }
        }
    }
}

#[cfg(feature = "chrono")]
mod with_chrono {
    use chrono::{DateTime, Datelike as _, NaiveDate, NaiveDateTime, TimeZone, Timelike as _};

    use super::{Canonical, KeyPart, date, instant, time_of_day};

    impl KeyPart for NaiveDate {
        fn write(&self, to: &mut Canonical) {
            to.leaf(date(self.year().into(), self.month().into(), self.day().into()).as_bytes());
        }
    }

    /// Without `Z`: it is no instant.
    impl KeyPart for NaiveDateTime {
        fn write(&self, to: &mut Canonical) {
            let day = date(self.year().into(), self.month().into(), self.day().into());
            let time = time_of_day(self.num_seconds_from_midnight().into(), self.nanosecond());
            to.leaf(format!("{day}T{time}").as_bytes());
        }
    }

    impl<Zone: TimeZone> KeyPart for DateTime<Zone> {
        fn write(&self, to: &mut Canonical) {
            instant(to, self.timestamp(), self.timestamp_subsec_nanos());
        }
    }
}

#[cfg(feature = "time")]
mod with_time {
    use time::{Date, OffsetDateTime, PrimitiveDateTime};

    use super::{Canonical, KeyPart, date, instant, time_of_day};

    fn day(of: Date) -> String {
        date(of.year().into(), u8::from(of.month()).into(), of.day().into())
    }

    impl KeyPart for Date {
        fn write(&self, to: &mut Canonical) {
            to.leaf(day(*self).as_bytes());
        }
    }

    /// Without `Z`: it is no instant.
    impl KeyPart for PrimitiveDateTime {
        fn write(&self, to: &mut Canonical) {
            let (hour, minute, second, nanoseconds) = self.time().as_hms_nano();
            let seconds = i64::from(hour) * 3_600 + i64::from(minute) * 60 + i64::from(second);
            to.leaf(format!("{}T{}", day(self.date()), time_of_day(seconds, nanoseconds)).as_bytes());
        }
    }

    impl KeyPart for OffsetDateTime {
        fn write(&self, to: &mut Canonical) {
            instant(to, self.unix_timestamp(), self.nanosecond());
        }
    }
}

#[cfg(feature = "jiff")]
mod with_jiff {
    use jiff::civil::Date;
    use jiff::{Timestamp, Zoned};

    use super::{Canonical, KeyPart, date, instant};

    impl KeyPart for Date {
        fn write(&self, to: &mut Canonical) {
            to.leaf(date(self.year().into(), self.month().into(), self.day().into()).as_bytes());
        }
    }

    impl KeyPart for Timestamp {
        fn write(&self, to: &mut Canonical) {
            // Before 1970 both parts of it are negative.
            let nanoseconds = i64::from(self.subsec_nanosecond());
            let seconds = self.as_second() + nanoseconds.div_euclid(1_000_000_000);
            let rest = u32::try_from(nanoseconds.rem_euclid(1_000_000_000)).expect("less than a second");
            instant(to, seconds, rest);
        }
    }

    impl KeyPart for Zoned {
        fn write(&self, to: &mut Canonical) {
            self.timestamp().write(to);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use crate::Key;

    fn of(part: &(impl crate::KeyPart + ?Sized)) -> Key {
        Key::of("a", part)
    }

    #[test]
    fn an_instant_is_written_as_people_write_it() {
        for (since, text) in [
            (Duration::ZERO, "1970-01-01T00:00:00Z"),
            (Duration::from_secs(951_782_399), "2000-02-28T23:59:59Z"),
            (Duration::from_secs(951_782_400), "2000-02-29T00:00:00Z"),
            (Duration::from_millis(1_796_117_400_250), "2026-12-01T09:30:00.250Z"),
            (Duration::from_micros(1_796_117_400_250_001), "2026-12-01T09:30:00.250001Z"),
            (Duration::from_nanos(1_796_117_400_000_000_001), "2026-12-01T09:30:00.000000001Z"),
            (Duration::from_secs(4_107_542_400), "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(of(&(UNIX_EPOCH + since)), of(text), "{text}");
        }
        assert_eq!(of(&(UNIX_EPOCH - Duration::from_secs(1))), of("1969-12-31T23:59:59Z"));
        assert_eq!(of(&(UNIX_EPOCH - Duration::from_millis(1))), of("1969-12-31T23:59:59.999Z"));
    }

    #[cfg(all(feature = "chrono", feature = "time", feature = "jiff"))]
    #[test]
    fn every_crate_spells_a_date_the_same_way() {
        for days in (-200_000..200_000).step_by(97) {
            let chrono = chrono::DateTime::from_timestamp(days * super::DAY + 5, 250_000_000).unwrap();
            let time = time::OffsetDateTime::from_unix_timestamp_nanos(
                i128::from(days * super::DAY + 5) * 1_000_000_000 + 250_000_000,
            )
            .unwrap();
            let jiff = jiff::Timestamp::new(days * super::DAY + 5, 250_000_000).unwrap();
            assert_eq!(of(&chrono), of(&time), "{chrono}");
            assert_eq!(of(&chrono), of(&jiff), "{chrono}");
            assert_eq!(of(&chrono.date_naive()), of(&time.date()), "{chrono}");
            assert_eq!(of(&chrono.date_naive()), of(&jiff.to_zoned(jiff::tz::TimeZone::UTC).date()), "{chrono}");
            assert_eq!(
                of(&chrono.naive_utc()),
                of(&time::PrimitiveDateTime::new(time.date(), time.time())),
                "{chrono}"
            );
        }
        let zone = chrono::FixedOffset::east_opt(3_600).unwrap();
        let instant = chrono::DateTime::from_timestamp(1_796_117_400, 0).unwrap();
        assert_eq!(of(&instant.with_timezone(&zone)), of(&instant), "the zone is no part of an instant");
    }
}
