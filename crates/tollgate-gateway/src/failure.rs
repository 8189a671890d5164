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
    Busy(ExhaustedResource),
    /// The client's share had no free slot in time: nothing was sent.
    Share(ExhaustedResource),
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

/// The resource that was exhausted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExhaustedResource {
    /// Requests in flight at one upstream.
    Requests,
    /// Tunnels open at one upstream.
    Tunnels,
    /// Connections of this process to all upstreams.
    Connections,
    /// Requests that wait for their body.
    Uploads,
}

impl fmt::Display for ExhaustedResource {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            ExhaustedResource::Requests => "requests",
            ExhaustedResource::Tunnels => "tunnels",
            ExhaustedResource::Connections => "connections",
            ExhaustedResource::Uploads => "uploads that have not begun",
        })
    }
}

impl UpstreamFailure {
    pub(crate) fn full(full: Full, resource: ExhaustedResource) -> Self {
        match full {
            Full::Client => UpstreamFailure::Share(resource),
            Full::All => UpstreamFailure::Busy(resource),
        }
    }
}

impl fmt::Display for UpstreamFailure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UpstreamFailure::Connect(_, details) => write!(formatter, "no connection: {details}"),
            UpstreamFailure::Busy(resource) => write!(formatter, "the limit of {resource} is reached"),
            UpstreamFailure::Share(resource) => write!(
                formatter,
                "the limit of {resource} of one client is reached; a balancer belongs among trusted_proxies, and per_client sets the limit"
            ),
            UpstreamFailure::Refused => {
                formatter.write_str("the upstream refused the request without processing it")
            }
            UpstreamFailure::Left => {
                formatter.write_str("the upstream closed its connection before the request")
            }
            UpstreamFailure::Unsent => formatter.write_str("an idle connection was already closed"),
            UpstreamFailure::Stale => {
                formatter.write_str("an idle connection was closed while the request was being sent")
            }
            UpstreamFailure::Lost(_, details) => write!(formatter, "the connection was lost: {details}"),
            UpstreamFailure::Late => formatter.write_str("no answer in time"),
        }
    }
}
