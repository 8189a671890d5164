//! See `server::resp_frames`.

#![no_main]

#[path = "../src/server.rs"]
mod server;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| server::resp_frames(bytes));
