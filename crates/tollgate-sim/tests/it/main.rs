//! Random traces against the exact oracle, every interval against its bound, and the documentation against the code.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, also in the functions that tests share"
)]

mod agreement;
mod bounds;
mod buckets;
mod calendars;
mod cases;
mod changes;
mod docs;
mod fleets;
mod fuzz;
mod no_drift;
mod overload;
mod seeds;
mod shares;
mod suggestions;
mod workloads;
