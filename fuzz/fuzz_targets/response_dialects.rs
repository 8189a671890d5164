//! See `outbound::response_dialects`.

#![no_main]

#[path = "../src/outbound.rs"]
mod outbound;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| outbound::response_dialects(bytes));
