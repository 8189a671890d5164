//! See `logs::log_traefik`.

#![no_main]

#[path = "../src/logs.rs"]
#[allow(dead_code, reason = "a target has one body of the file")]
mod logs;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| logs::log_traefik(bytes));
