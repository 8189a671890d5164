//! Random traces against the exact oracle, every interval against its bound, and the documentation against the code.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, also in the functions that tests share"
)]

#[allow(dead_code, reason = "the examples print the rest")]
mod accuracy;
mod agreement;
mod bound;
mod bounds;
mod buckets;
mod calendars;
mod cases;
mod changes;
mod docs;
mod drift;
mod fleets;
mod fuzz;
mod no_drift;
mod oracle;
mod overload;
#[allow(dead_code, reason = "the examples print the rest")]
mod overloaded_server;
mod seeds;
mod suggestions;
mod workload;
mod workloads;
