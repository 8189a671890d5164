//! What to do: how many connections ask what, for how long, and how fast.

use std::net::SocketAddr;
use std::time::Duration;

use super::question::Question;

/// How fast to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Each connection asks again as soon as it was answered.
    Closed,
    /// So many requests a second in all, whatever the answers do.
    Open {
        /// Requests a second.
        per_second: u64,
    },
}

/// One run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Whom to ask.
    pub target: SocketAddr,
    /// What to ask.
    pub question: Question,
    /// How many connections ask.
    pub connections: usize,
    /// How many requests each has under way at once; in an open loop, one.
    pub pipeline: usize,
    /// How many different keys are asked about, all equally often.
    pub keys: u64,
    /// How fast.
    pub pace: Pace,
    /// How long to ask before anything is measured.
    pub warmup: Duration,
    /// How long to measure.
    pub duration: Duration,
}
