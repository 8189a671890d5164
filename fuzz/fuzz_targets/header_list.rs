//! See `tollgate_fuzz::header_list`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tollgate_fuzz::header_list(bytes));
