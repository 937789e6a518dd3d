//! An arbitrary text as a duration: what `duration::check` says must hold.

#![no_main]

#[path = "../../idem-macros/src/expand/duration.rs"]
mod duration;

libfuzzer_sys::fuzz_target!(|data: &[u8]| duration::check(data));
