//! A run's parameters: how many connections send which request, for how long, and at which rate.

use std::net::SocketAddr;
use std::time::Duration;

use crate::request::LoadRequest;

/// The rate of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Each connection sends the next request as soon as it was answered.
    Closed,
    /// This many requests a second in all, independent of the answers.
    Open {
        /// Requests a second.
        per_second: u64,
    },
}

/// One run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The server.
    pub target: SocketAddr,
    /// The request to send.
    pub question: LoadRequest,
    /// How many connections send.
    pub connections: usize,
    /// How many requests each has in flight at once; in an open loop, one.
    pub pipeline: usize,
    /// How many different keys are used, all equally often.
    pub keys: u64,
    /// The rate.
    pub pace: Pace,
    /// How long to send before the measurement.
    pub warmup: Duration,
    /// How long to measure.
    pub duration: Duration,
}
