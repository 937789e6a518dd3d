//! Arbitrary bytes as a header's idempotency key: what `idem_runtime::__fuzz::key` says must hold.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| idem_runtime::__fuzz::key(data));
