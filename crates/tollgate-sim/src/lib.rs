//! Simulations of Tollgate in virtual time: seeded workloads, and two independent checks of what a limiter admits.
//!
//! ```
//! use tollgate::{Quota, Rate, Ticks, Timestamp};
//! use tollgate_sim::bound::worst_in_window;
//! use tollgate_sim::limiter::Limiter;
//! use tollgate_sim::workload::{Shape, trace};
//!
//! let (minute, hour) = (Ticks::from_secs(60), Ticks::from_secs(3_600));
//! let start = Timestamp::from_unix_seconds(1_700_000_000);
//! let mut limiter = Limiter::new(Quota::token_bucket(Rate::per_minute(100))?);
//! let mut hits = trace(Shape::Straddling { burst: 300 }, minute, start, hour, 7);
//! hits.retain(|hit| limiter.charge(hit.at, hit.cost).is_allowed());
//! let admitted: Vec<_> = hits.iter().map(|hit| (hit.at, hit.cost)).collect();
//! // A full bucket, and what a minute refills.
//! assert!((101..=200).contains(&worst_in_window(&admitted, minute)));
//! # Ok::<(), tollgate::QuotaError>(())
//! ```
//!
//! | module | what it has |
//! |---|---|
//! | [`workload`], [`random`] | traces of requests, from a seed |
//! | [`limiter`] | one key of one limit |
//! | [`oracle`], [`bound`], [`drift`] | independent checks of what was admitted |
//! | [`accuracy`] | how far each algorithm is from an exact count |
//! | [`fleet`], [`overload`] | many servers on one store; a service with more load than it can take |
//! | [`log`], [`replay`] | requests as access logs describe them, and what a policy would have decided about them |
//!
//! The [`oracle`] computes what the definition of each algorithm demands, to the tick. [`bound`] measures what a caller
//! got in the worst interval. The crate uses neither sockets nor the real clock, and the checks share no arithmetic with
//! the algorithms.

pub mod random;
pub mod workload;
pub mod limiter;
pub mod oracle;
pub mod bound;
pub mod drift;
pub mod accuracy;
pub mod fleet;
pub mod overload;
pub mod log;
pub mod replay;
pub mod suggest;

/// The front page of the package, so that `cargo test` compiles its example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Package;
