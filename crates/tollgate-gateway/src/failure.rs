//! Why an upstream gave no answer to a request.

use std::fmt;

use crate::cause::Cause;
use crate::shares::Full;

/// Why there is no answer, with the cause for clients and the details for the log.
#[derive(Debug)]
pub(crate) enum UpstreamFailure {
    /// No connection could be made: nothing was sent.
    Connect(Cause, String),
    /// No slot was free in time: nothing was sent.
    Busy(Scarce),
    /// The client's share had no free slot in time: nothing was sent.
    Share(Scarce),
    /// The upstream says that it has not processed the request.
    Refused,
    /// An idle HTTP/1 connection was already closed: nothing was sent.
    Unsent,
    /// The upstream accepts no more requests on an HTTP/2 connection, or has closed it, and has not processed this one.
    Left,
    /// An idle connection ended while the request was being sent, and the request may be repeated. Usually the upstream
    /// had closed the connection before.
    Stale,
    /// The connection ended before an answer.
    Lost(Cause, String),
    /// No answer came in time.
    Late,
}

/// What the request waited for in vain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scarce {
    /// Requests in flight at one upstream.
    Requests,
    /// Tunnels open at one upstream.
    Tunnels,
    /// Connections of this process to all upstreams.
    Connections,
    /// Requests that wait for their body.
    Uploads,
}

impl fmt::Display for Scarce {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Scarce::Requests => "requests",
            Scarce::Tunnels => "tunnels",
            Scarce::Connections => "connections",
            Scarce::Uploads => "uploads that have not begun",
        })
    }
}

impl UpstreamFailure {
    pub(crate) fn full(full: Full, scarce: Scarce) -> Self {
        match full {
            Full::Client => UpstreamFailure::Share(scarce),
            Full::All => UpstreamFailure::Busy(scarce),
        }
    }
}

impl fmt::Display for UpstreamFailure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UpstreamFailure::Connect(_, details) => write!(formatter, "no connection: {details}"),
            UpstreamFailure::Busy(scarce) => write!(formatter, "as many {scarce} are there as may be"),
            UpstreamFailure::Share(scarce) => write!(
                formatter,
                "its client has as many {scarce} as one may; a balancer belongs among trusted_proxies, and per_client says how many"
            ),
            UpstreamFailure::Refused => formatter.write_str("it was refused unseen"),
            UpstreamFailure::Left => formatter.write_str("the upstream left its connection before it"),
            UpstreamFailure::Unsent => formatter.write_str("a connection that had rested had ended"),
            UpstreamFailure::Stale => {
                formatter.write_str("a connection that had rested ended as it was sent")
            }
            UpstreamFailure::Lost(_, details) => write!(formatter, "it was lost: {details}"),
            UpstreamFailure::Late => formatter.write_str("no answer in time"),
        }
    }
}
