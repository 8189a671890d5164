//! Why a call may not leave: which bucket refuses it, whose numbers say so, and until when.

use std::fmt;

use tollgate::{RequestError, Ticks, Timestamp};

use crate::signal::ThrottleKind;

/// Whose numbers decide about a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Basis {
    /// Those of our own policy.
    Policy,
    /// Those of the server that is called.
    Server,
}

impl fmt::Display for Basis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Basis::Policy => "our policy",
            Basis::Server => "the server",
        })
    }
}

/// A call that may not leave. Nothing was charged for it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// It would leave later than it may.
    #[error("{bucket}: by the numbers of {basis} the call can leave in {} at the earliest, and may wait {}; \
             allow a longer wait or call less often", .wait.readable(), .max_wait.readable())]
    TooLate {
        /// The bucket that it would wait for.
        bucket: String,
        /// Whose numbers say so.
        basis: Basis,
        /// The shortest wait.
        wait: Ticks,
        /// The longest wait that the call allows.
        max_wait: Ticks,
        /// When it could leave at the earliest.
        until: Timestamp,
    },
    /// Too many calls wait for the same bucket.
    #[error(
        "{bucket}: {waiting} calls wait already, and the queue takes no more; call less often or allow a longer queue"
    )]
    QueueFull {
        /// The bucket.
        bucket: String,
        /// How many calls wait for it.
        waiting: usize,
    },
    /// The server's quota is exhausted for so long that waiting is useless.
    #[error("{bucket}: the server refuses calls ({}){}; {}", .kind.name(), until_text(*.wait), cure(*.kind))]
    Exhausted {
        /// The bucket.
        bucket: String,
        /// Which kind of limit.
        kind: ThrottleKind,
        /// How long, if the server says it.
        wait: Option<Ticks>,
        /// Until when, if the server says it.
        until: Option<Timestamp>,
    },
    /// The server fails, so that no calls are sent to it for a while.
    #[error("{bucket}: the server failed {failures} times in a row; the next attempt is made in {}", .wait.readable())]
    CircuitOpen {
        /// The bucket, which is the server.
        bucket: String,
        /// The failures in a row.
        failures: u32,
        /// How long no calls are sent.
        wait: Ticks,
        /// Until when no calls are sent.
        until: Timestamp,
    },
    /// It costs more than a limit ever admits.
    #[error("{bucket}: the call costs more than the {capacity} that the limit ever admits; make it smaller")]
    Never {
        /// The limit.
        bucket: String,
        /// The largest cost that can pass.
        capacity: u64,
    },
    /// The policy forbids it.
    #[error("{bucket}: the policy denies such calls")]
    Forbidden {
        /// The limit.
        bucket: String,
    },
    /// The attributes of the call are not valid.
    #[error(transparent)]
    Invalid(#[from] RequestError),
}

fn until_text(wait: Option<Ticks>) -> String {
    wait.map_or_else(String::new, |wait| format!(" for another {}", wait.readable()))
}

const fn cure(kind: ThrottleKind) -> &'static str {
    match kind {
        ThrottleKind::Money => "raise the budget at the provider",
        ThrottleKind::Day => "wait for the next period, or raise the quota at the provider",
        _ => "come back then, or allow a longer wait",
    }
}

impl Refusal {
    /// When the call could leave, if that is known.
    #[must_use]
    pub const fn until(&self) -> Option<Timestamp> {
        match self {
            Refusal::TooLate { until, .. } | Refusal::CircuitOpen { until, .. } => Some(*until),
            Refusal::Exhausted { until, .. } => *until,
            _ => None,
        }
    }

    /// The bucket that refuses the call.
    #[must_use]
    pub fn bucket(&self) -> Option<&str> {
        match self {
            Refusal::TooLate { bucket, .. }
            | Refusal::QueueFull { bucket, .. }
            | Refusal::Exhausted { bucket, .. }
            | Refusal::CircuitOpen { bucket, .. }
            | Refusal::Never { bucket, .. }
            | Refusal::Forbidden { bucket } => Some(bucket),
            Refusal::Invalid(_) => None,
        }
    }
}
