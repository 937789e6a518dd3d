//! What a multi-step operation has done, as one line a step: its name as JSON, a tab, its result as JSON. A line without
//! a result says that the step was started. The text of a JSON value has neither tabs nor line breaks inside its strings.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::Error;
use crate::recorded;

/// A step that was recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RecoveryPoint {
    pub(crate) name: String,
    /// `None`: started, and it may have happened.
    result: Option<String>,
}

impl RecoveryPoint {
    pub(crate) fn result<T: DeserializeOwned>(&self) -> Result<Option<T>, Error> {
        self.result.as_deref().map(serde_json::from_str).transpose().map_err(Error::Json)
    }
}

/// The line that records a result.
pub(crate) fn finished<T: Serialize + DeserializeOwned>(name: &str, result: &T) -> Result<Vec<u8>, Error> {
    let name = serde_json::to_string(name).map_err(Error::Json)?;
    // An answer that is kept as it came (`RawValue`) may have line breaks between its values.
    let result = recorded::encode(result)?.replace(['\n', '\r'], " ");
    Ok(format!("{name}\t{result}\n").into_bytes())
}

/// The line that records a start.
pub(crate) fn started(name: &str) -> Result<Vec<u8>, Error> {
    let name = serde_json::to_string(name).map_err(Error::Json)?;
    Ok(format!("{name}\n").into_bytes())
}

/// Reads the lines; a start and its result are one recovery point.
pub(crate) fn read(lines: &[u8]) -> Result<Vec<RecoveryPoint>, Error> {
    let mut points: Vec<RecoveryPoint> = Vec::new();
    for line in lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let mut parts = line.splitn(2, |byte| *byte == b'\t');
        let name: String = serde_json::from_slice(parts.next().unwrap_or_default()).map_err(Error::Json)?;
        let result = parts.next().map(|result| String::from_utf8_lossy(result).into_owned());
        match points.last_mut() {
            Some(last) if last.name == name && last.result.is_none() => last.result = result,
            _ => points.push(RecoveryPoint { name, result }),
        }
    }
    Ok(points)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_read_back_whatever_they_hold() {
        let mut lines = finished("tab\tand\nbreak", &"a\tb\n".to_owned()).expect("JSON");
        lines.extend(started("charge").expect("JSON"));
        lines.extend(finished("charge", &(1, 2.5, None::<u8>)).expect("JSON"));
        lines.extend(started("mail").expect("JSON"));
        let points = read(&lines).expect("lines");
        assert_eq!(
            points.iter().map(|point| point.name.as_str()).collect::<Vec<_>>(),
            ["tab\tand\nbreak", "charge", "mail"]
        );
        assert_eq!(points[0].result::<String>().expect("JSON").as_deref(), Some("a\tb\n"));
        assert_eq!(points[1].result::<(i32, f64, Option<u8>)>().expect("JSON"), Some((1, 2.5, None)));
        assert_eq!(points[2].result::<String>().expect("JSON"), None);
        assert!(points[1].result::<String>().is_err(), "another type does not fit");
    }

    #[test]
    fn a_raw_value_stays_on_its_line() {
        let raw: Box<serde_json::value::RawValue> = serde_json::from_str("{\r\n\t\"a\": 1\n}").expect("JSON");
        let mut lines = finished("charge", &raw).expect("JSON");
        lines.extend(finished("mail", &1).expect("JSON"));
        let points = read(&lines).expect("lines");
        assert_eq!(points.len(), 2);
        assert_eq!(points[0].result::<serde_json::Value>().expect("JSON"), Some(serde_json::json!({ "a": 1 })));
    }

    #[test]
    fn a_result_of_null_is_a_result() {
        let lines = finished("nothing", &()).expect("JSON");
        assert_eq!(read(&lines).expect("lines")[0].result::<()>().expect("JSON"), Some(()));
    }
}
