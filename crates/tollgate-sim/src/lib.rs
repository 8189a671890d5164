//! Simulations of Tollgate in virtual time: seeded workloads, and two independent checks of what a limiter admits.
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
