//! See `tollgate_server::fuzzing::envoy_file`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tollgate_server::fuzzing::envoy_file(bytes));
