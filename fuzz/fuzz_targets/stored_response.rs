//! Arbitrary headers and bodies through the table, and arbitrary bytes from it: what `idem_runtime::__fuzz::stored_response` says must hold.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| idem_runtime::__fuzz::stored_response(data));
