//! A load generator for every protocol. In a closed loop each connection sends as fast as it is answered, and the
//! result is the throughput. In an open loop requests are due at fixed instants, and latency counts from when a request
//! was *due*: a server that stalls is not excused because the generator waited with it.

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
