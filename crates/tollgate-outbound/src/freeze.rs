//! A time in which no calls are sent: its end, its cause, and the words of the server.

use tollgate::{Ticks, Timestamp};

use crate::signal::ThrottleKind;

/// Why a bucket is frozen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FreezeCause {
    /// The server refused a call.
    Throttled(ThrottleKind),
    /// The server failed this many times in a row.
    Failing(u32),
}

/// The words of the server about the length of a freeze.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Statement {
    /// When it said them.
    pub at: Timestamp,
    /// The wait that it asked for.
    pub wait: Ticks,
}

/// A time in which no calls are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Freeze {
    /// Its end: the wait that the server asked for, and up to a tenth more, at most a minute, so that callers do not
    /// return together.
    pub until: Timestamp,
    /// Its cause.
    pub cause: FreezeCause,
    /// The words of the server. `None` if it did not say how long.
    pub statement: Option<Statement>,
}
