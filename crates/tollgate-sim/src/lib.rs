//! Simulations of fleets in virtual time, readers of access logs, and their replay through a policy.
//!
//! ```
//! use tollgate::{Quota, Rate, Ticks};
//! use tollgate_sim::fleet::{CountingMode, FleetScenario, run};
//!
//! let scenario = FleetScenario {
//!     quota: Quota::token_bucket(Rate::per_second(100))?,
//!     nodes: 3,
//!     keys: 1,
//!     offered: 1_000,
//!     time: Ticks::from_secs(2),
//!     lease: (100_000, Ticks::from_millis(250)),
//!     skew: 80,
//!     losses: 0,
//!     cuts: false,
//!     seed: 7,
//! };
//! let outcome = run(&scenario, CountingMode::Leased)?;
//! // A full bucket, and what two seconds refill.
//! assert!(outcome.most <= 300);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | module | what it has |
//! |---|---|
//! | [`random`] | random integers from a seed |
//! | [`limiter`] | one key of one limit |
//! | [`fleet`] | many servers on one store |
//! | [`log`], [`replay`] | requests as access logs describe them, and what a policy would have decided about them |
//! | [`suggest`] | limits that fit the traffic of a log |
//!
//! The crate uses neither sockets nor the real clock. Its tests (`tests/it`) hold the algorithms to an exact oracle, to the
//! bounds of each definition, and to a simulation of an overloaded server.

pub mod random;
pub mod limiter;
pub mod fleet;
pub mod log;
pub mod replay;
pub mod suggest;

/// The front page of the package, so that `cargo test` compiles its example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Package;
