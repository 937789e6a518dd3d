//! Arbitrary parts as a multipart body, and arbitrary bytes as one: what `idem_runtime::__fuzz::multipart` says must hold.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| idem_runtime::__fuzz::multipart(data));
