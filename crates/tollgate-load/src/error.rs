//! Why a run could not start or finish.

use std::net::SocketAddr;

/// Why a run could not start or finish.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The server does not accept a connection.
    #[error(
        "cannot connect to {target}: {reason}; start the server first (`tollgate serve`), or name its address with --to"
    )]
    Connect {
        /// The server's address.
        target: SocketAddr,
        /// The system's error.
        reason: String,
    },
    /// A connection was lost during the run.
    #[error("a connection was lost: {reason}; is this the right protocol for this address?")]
    Lost {
        /// The system's error.
        reason: String,
    },
    /// An answer did not come.
    #[error(
        "no answer came within {seconds} s; the server may be overloaded: ask for less with --rate or --connections"
    )]
    Slow {
        /// The timeout.
        seconds: u64,
    },
    /// A connection's task ended unexpectedly.
    #[error("a connection of the generator ended by itself: {0}; please report this")]
    Ended(String),
    /// The histogram could not be created.
    #[error("the histogram cannot be made; please report this")]
    Histogram,
}
