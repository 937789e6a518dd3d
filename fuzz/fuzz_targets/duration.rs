//! An arbitrary text as a duration: an error, or a duration within the limits.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../idem-macros/src/expand/duration.rs"]
mod duration;

fuzz_target!(|text: &str| {
    match duration::parse(text) {
        Ok(duration) => assert!(!duration.is_zero() && duration.as_secs() <= 365 * 86_400),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
