//! Arbitrary names and results as recovery points, and arbitrary bytes as their lines: what `idem_runtime::__fuzz::recovery_point_lines` says must hold.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| idem_runtime::__fuzz::recovery_point_lines(data));
