//! Human durations: `"24h"`, `"1h 30m"`, `"7 days"`. Depends on nothing, so that it can be tested and fuzzed by itself.

use std::fmt;
use std::time::Duration;

const DAY: u64 = 24 * 60 * 60 * 1000;

/// The longest duration accepted: 365 days.
const LONGEST: u64 = 365 * DAY;

const UNITS: &[(&[&str], u64)] = &[
    (&["ms", "millisecond", "milliseconds"], 1),
    (&["s", "sec", "secs", "second", "seconds"], 1000),
    (&["m", "min", "mins", "minute", "minutes"], 60 * 1000),
    (&["h", "hr", "hrs", "hour", "hours"], 60 * 60 * 1000),
    (&["d", "day", "days"], DAY),
    (&["w", "week", "weeks"], 7 * DAY),
];

/// Why a text is no duration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum DurationError {
    Empty,
    Negative,
    NoNumber(String),
    Fraction(String),
    NoUnit(String),
    UnknownUnit(String),
    Zero,
    TooLong,
}

impl fmt::Display for DurationError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => formatter.write_str("must not be empty; use a number and a unit such as `24h`"),
            Self::Negative => formatter.write_str("must not be negative; use a number and a unit such as `24h`"),
            Self::NoNumber(found) => {
                write!(formatter, "must be a number and a unit such as `24h`; there is no number before `{found}`")
            }
            Self::Fraction(found) => {
                write!(formatter, "must be made of whole numbers; instead of `{found}` use a sum such as `1h 30m`")
            }
            Self::NoUnit(number) => write!(
                formatter,
                "must have a unit after `{number}`; use `{number}s`, `{number}m`, `{number}h`, `{number}d` or `{number}w`"
            ),
            Self::UnknownUnit(unit) => {
                write!(formatter, "has the unknown unit `{unit}`; use `s`, `m`, `h`, `d` or `w`")
            }
            Self::Zero => formatter.write_str("must not be zero; use a duration of at least a second such as `24h`"),
            Self::TooLong => formatter.write_str("must be at most 1 year; use `365d` or less"),
        }
    }
}

/// Parses a sum of numbers with units. White space between them does not count.
pub(super) fn parse(text: &str) -> Result<Duration, DurationError> {
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err(DurationError::Empty);
    }
    if rest.starts_with(['-', '\u{2212}']) {
        return Err(DurationError::Negative);
    }
    let mut total: u64 = 0;
    while !rest.is_empty() {
        let (part, after) = parse_part(rest)?;
        total = total.checked_add(part).ok_or(DurationError::TooLong)?;
        rest = after;
    }
    match total {
        0 => Err(DurationError::Zero),
        _ if total > LONGEST => Err(DurationError::TooLong),
        _ => Ok(Duration::from_millis(total)),
    }
}

/// The milliseconds of the first number with its unit, and what comes after it.
fn parse_part(text: &str) -> Result<(u64, &str), DurationError> {
    let (number, after) = split_while(text, |c| c.is_ascii_digit());
    if number.is_empty() {
        let (word, _) = split_while(text, |c| !c.is_whitespace());
        return Err(DurationError::NoNumber(word.to_owned()));
    }
    if after.starts_with(['.', ',']) {
        let (fraction, _) = split_while(&after[1..], |c| c.is_ascii_alphanumeric());
        return Err(DurationError::Fraction(format!("{number}{}{fraction}", &after[..1])));
    }
    let (unit, after) = split_while(after.trim_start(), |c| !c.is_whitespace() && !c.is_ascii_digit());
    if unit.is_empty() {
        return Err(DurationError::NoUnit(number.to_owned()));
    }
    let milliseconds = UNITS
        .iter()
        .find(|(names, _)| names.contains(&unit))
        .map(|(_, milliseconds)| *milliseconds)
        .ok_or_else(|| DurationError::UnknownUnit(unit.to_owned()))?;
    let number: u64 = number.parse().map_err(|_| DurationError::TooLong)?;
    let part = number.checked_mul(milliseconds).ok_or(DurationError::TooLong)?;
    Ok((part, after.trim_start()))
}

fn split_while(text: &str, matches: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(|c| !matches(c)).unwrap_or(text.len()))
}

/// What must hold for any text: the fuzz target `duration`, whose corpus the tests replay.
#[cfg(any(test, fuzzing))]
#[allow(dead_code, reason = "the fuzz target of the whole attribute does not call it")]
pub(super) fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let duration = match parse(text) {
        Ok(duration) => duration,
        Err(error) => return assert!(error.to_string().starts_with(['m', 'h']), "it says what must be: {error}"),
    };
    let milliseconds = duration.as_millis();
    assert!((1..=u128::from(LONGEST)).contains(&milliseconds));
    assert_eq!(parse(&format!("\t{text}\n")), Ok(duration), "white space around it does not count");
    assert_eq!(parse(&format!("{milliseconds}ms")), Ok(duration));
    let sum = parse(&format!("{text} 1 week"));
    match milliseconds + u128::from(7 * DAY) <= u128::from(LONGEST) {
        true => assert_eq!(sum, Ok(duration + Duration::from_secs(7 * 24 * 60 * 60)), "parts add up"),
        false => assert_eq!(sum, Err(DurationError::TooLong)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_with_units_add_up() {
        for (text, seconds) in [
            ("1s", 1),
            ("90 s", 90),
            ("24h", 86_400),
            ("1h 30m", 5_400),
            ("1h30m", 5_400),
            ("2 days", 172_800),
            ("1 week 1 day", 691_200),
            ("  5 minutes  ", 300),
            ("365d", 31_536_000),
            ("0h 1s", 1),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        assert_eq!(parse("250ms"), Ok(Duration::from_millis(250)));
    }

    #[test]
    fn the_corpus_holds() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/duration");
        let files: Vec<_> =
            std::fs::read_dir(folder).expect("a corpus").map(|entry| entry.expect("a file").path()).collect();
        assert!(files.len() > 5, "there is a corpus");
        for file in files {
            println!("{}", file.display());
            check(&std::fs::read(file).expect("readable"));
        }
    }

    #[test]
    fn each_mistake_has_its_own_error() {
        for (text, error) in [
            ("", DurationError::Empty),
            ("   ", DurationError::Empty),
            ("-1h", DurationError::Negative),
            ("\u{2212}1h", DurationError::Negative),
            ("0s", DurationError::Zero),
            ("0h 0m", DurationError::Zero),
            ("24", DurationError::NoUnit("24".into())),
            ("1h 30", DurationError::NoUnit("30".into())),
            ("24 fortnights", DurationError::UnknownUnit("fortnights".into())),
            ("1H", DurationError::UnknownUnit("H".into())),
            ("1h, 30m", DurationError::UnknownUnit("h,".into())),
            ("1.5h", DurationError::Fraction("1.5h".into())),
            ("soon", DurationError::NoNumber("soon".into())),
            ("1h -30m", DurationError::NoNumber("-30m".into())),
            ("366d", DurationError::TooLong),
            ("53w", DurationError::TooLong),
            ("99999999999999999999999h", DurationError::TooLong),
            ("18446744073709551615w", DurationError::TooLong),
            ("365d 1ms", DurationError::TooLong),
        ] {
            assert_eq!(parse(text), Err(error), "{text}");
        }
    }
}
