//! The core through its public interface, in one binary.

mod executor;
mod fixture;

mod concurrency;
mod conformance;
mod faults;
mod flood;
mod fuzz;
mod gate;
mod gate_waits;
mod memory;
mod store_failure;
mod swaps;
