//! An overloaded server in virtual time, behind a concurrency limiter.
//!
//! The server has a number of workers and a hidden queue. Its callers give up, retry or cancel. The limiter is
//! Tollgate's, or a published one for comparison. The outcome lists throughput and latency second by second.

pub(crate) mod scenario;
mod server;
pub(crate) mod limiters;
mod simulation;
mod priorities;
pub(crate) mod table;

pub(crate) use priorities::{Queueing, simulate_priorities};
pub(crate) use simulation::{OverloadOutcome, OverloadSecond, simulate};
