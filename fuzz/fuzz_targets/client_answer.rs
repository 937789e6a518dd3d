//! Arbitrary bytes as an answer to the client: what `idem_client::__fuzz::answer` says must hold.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| idem_client::__fuzz::answer(data));
