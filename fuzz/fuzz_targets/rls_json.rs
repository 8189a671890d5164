//! See `tollgate_server::fuzzing::rls_json`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tollgate_server::fuzzing::rls_json(bytes));
