//! An overloaded server in virtual time, behind a concurrency limiter.
//!
//! The server has a number of workers and a hidden queue. Its callers give up, retry or cancel. The limiter is
//! Tollgate's, or a published one for comparison. The outcome lists throughput and latency second by second.

pub mod scenario;
mod server;
pub mod limiters;
mod simulation;
mod priorities;
pub mod table;

pub use priorities::{PriorityOutcome, PrioritySecond, Queueing, simulate_priorities};
pub use simulation::{OverloadOutcome, OverloadSecond, simulate, simulate_with};
