//! The core through its public interface, in one binary.

mod fixture;

mod conformance;
mod store_failure;
