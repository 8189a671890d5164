//! The core through its public interface, in one binary.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    reason = "clippy's own exception for tests leaves out what they share"
)]

mod executor;
mod fixture;
mod ideal;

mod bounds;
mod concurrency;
mod conformance;
mod examples;
mod explain;
mod faults;
mod flood;
mod grants;
mod grouping;
mod failures;
mod fuzz;
mod gate;
mod gate_deadlines;
mod gate_departures;
mod gate_permits;
mod gate_waits;
mod memory;
mod snapshot;
mod operate;
mod outage;
mod penalty;
mod reload;
mod reset;
mod fast_path;
mod store_failure;
mod swaps;
mod wall;
