//! See `tollgate_fuzz::key_encoding`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tollgate_fuzz::key_encoding(bytes));
