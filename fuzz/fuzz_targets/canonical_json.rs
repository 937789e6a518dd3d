//! Arbitrary bytes as a JSON body, beside serde_json: what `idem_runtime::__fuzz::canonical_json` says must hold.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| idem_runtime::__fuzz::canonical_json(data));
