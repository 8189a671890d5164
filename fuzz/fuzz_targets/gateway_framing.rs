//! See `server::gateway_framing`.

#![no_main]

#[path = "../src/server.rs"]
#[allow(dead_code, reason = "a target has one body of the file")]
mod server;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| server::gateway_framing(bytes));
