//! Arbitrary bytes as a key header on its way out: what `idem_client::__fuzz::key` says must hold.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| idem_client::__fuzz::key(data));
