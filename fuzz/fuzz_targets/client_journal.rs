//! Arbitrary bytes as the file of a client's journal: what `idem_client::__fuzz::journal` says must hold.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| idem_client::__fuzz::journal(data));
