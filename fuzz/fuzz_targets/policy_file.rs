//! See `tollgate_fuzz::policy_file`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tollgate_fuzz::policy_file(bytes));
