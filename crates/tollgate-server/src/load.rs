//! A load generator for any of the wires. In a closed loop each connection asks as fast as it is answered, and throughput is what is
//! found; in an open loop requests are due at fixed instants, and latency counts from when a request was *due*: a server that
//! stalls is not excused because the generator waited with it.

pub mod plan;
pub mod question;
mod connection;
mod details;
mod grpc;
mod reply;
mod run;
mod summary;
pub(crate) mod command;
mod plot;

pub use details::Details;
pub use plan::{Pace, Plan};
pub use question::{Protocol, Question};
pub use run::{LoadError, run};
pub use summary::Summary;
