//! The core through its public interface, in one binary.

mod executor;
mod fixture;

mod conformance;
mod gate;
mod gate_waits;
mod store_failure;
