//! Results of functions and of parts are recorded as JSON, and given back to whoever comes after.
//!
//! A value that JSON does not give back as it was (NaN, a field that is skipped, a map whose keys are no text) must fail before it is
//! recorded, when nothing is committed yet: afterwards every redelivery and every resumed attempt would fail on it.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::Error;

/// The JSON of a value that can be read back from it.
pub(crate) fn encode<T: Serialize + DeserializeOwned>(value: &T) -> Result<String, Error> {
    let json = serde_json::to_string(value).map_err(Error::Json)?;
    serde_json::from_str::<T>(&json).map_err(Error::Json)?;
    Ok(json)
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashMap, HashSet};

    use serde::{Deserialize, Serialize};

    use super::*;

    #[derive(Serialize, Deserialize)]
    struct Skips {
        kept: i32,
        #[serde(skip_serializing)]
        left_out: i32,
    }

    #[test]
    fn what_comes_back_as_it_was_is_recorded() {
        for float in [0.1, 1.0 / 3.0, f64::MAX, f64::MIN_POSITIVE, 5e-324, 123_456_789.123_456_78, -0.0, 1e300] {
            let json = encode(&float).expect("a number");
            assert_eq!(serde_json::from_str::<f64>(&json).expect("JSON").to_bits(), float.to_bits(), "{json}");
        }
        assert!(encode(&f32::MIN_POSITIVE).is_ok());
        assert!(encode(&u64::MAX).is_ok() && encode(&i64::MIN).is_ok() && encode(&u128::MAX).is_ok());
        assert!(encode(&HashMap::from([(1, "one".to_owned()), (2, "two".to_owned())])).is_ok());
        assert!(encode(&HashSet::from([1, 2, 3, 4, 5])).is_ok(), "the order of a set is no part of it");
        assert!(encode(&Some(())).is_ok() && encode(&"\u{0}\u{ffff}".to_owned()).is_ok());
    }

    #[test]
    fn what_does_not_is_an_error() {
        assert!(encode(&f64::NAN).is_err() && encode(&f64::INFINITY).is_err());
        let skips = Skips { kept: 1, left_out: 2 };
        assert!(skips.kept + skips.left_out == 3 && encode(&skips).is_err());
        assert!(encode(&BTreeMap::from([((1, 2), 3)])).is_err(), "keys are text");
    }
}
