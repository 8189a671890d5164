//! Calls in virtual time: a test moves the clock, and nothing waits in real time.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs, reason = "tests")]

mod dialects;
mod fixture;
mod forecast;
mod freeze;
mod fuzz;
mod hedging;
mod layer;
mod learning;
mod permits;
mod presets;
mod providers;
mod report;
mod shared_store;
mod spread;
mod strict_server;
mod waiting;
mod waves;
