//! Why a call may not leave: which bucket refuses it, whose numbers say so, and until when.

use std::fmt;

use tollgate::{RequestError, Ticks, Timestamp};

use crate::freeze::{Freeze, FreezeCause, Statement};
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

/// Why a call may not leave, or not again. A call that has not left is not charged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// It would leave later than it may.
    #[error("{bucket}: {}the call would wait {} in all, until {} at the earliest, and may wait {}; {}",
             late_cause(*.basis, .freeze.as_ref()), span(*.wait), instant(*.until), span(*.max_wait),
             late_cure(.freeze.as_ref()))]
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
        /// The freeze of the bucket, if it is frozen.
        freeze: Option<Freeze>,
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
    #[error("{bucket}: the server refuses calls ({}{}) for another {}, until {}; {}", .kind.name(),
             stated(.statement.as_ref()), span(*.wait), instant(*.until), cure(*.kind))]
    Exhausted {
        /// The bucket.
        bucket: String,
        /// Which kind of limit.
        kind: ThrottleKind,
        /// How long no calls are sent.
        wait: Ticks,
        /// Until when no calls are sent: as long as the server says, or for a while if it does not say.
        until: Timestamp,
        /// The words of the server.
        statement: Option<Statement>,
    },
    /// The server fails, so that no calls are sent to it for a while.
    #[error("{bucket}: the server failed {failures} times in a row; the next attempt is made in {}, at {}",
             span(*.wait), instant(*.until))]
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

/// An instant in UTC, to the second, rounded up.
fn instant(at: Timestamp) -> jiff::Timestamp {
    let seconds = i64::try_from(at.unix_micros().div_ceil(1_000_000)).unwrap_or(i64::MAX);
    jiff::Timestamp::from_second(seconds).unwrap_or(jiff::Timestamp::MAX)
}

/// A duration for people, up to two days in hours and minutes.
fn span(wait: Ticks) -> String {
    const DAY_MINUTES: u64 = 24 * 60;
    let minutes = wait.ceil_seconds().div_ceil(60);
    if !(DAY_MINUTES..2 * DAY_MINUTES).contains(&minutes) {
        return wait.readable();
    }
    match minutes % 60 {
        0 => format!("{} h", minutes / 60),
        rest => format!("{} h {rest} min", minutes / 60),
    }
}

/// The words of the server, in a list.
fn stated(statement: Option<&Statement>) -> String {
    statement
        .map(|statement| format!(", it said so at {}: wait {}", instant(statement.at), span(statement.wait)))
        .unwrap_or_default()
}

fn late_cause(basis: Basis, freeze: Option<&Freeze>) -> String {
    match freeze {
        Some(Freeze { statement: Some(statement), .. }) => {
            format!(
                "the server refused a call at {} and said to wait {}; ",
                instant(statement.at),
                span(statement.wait)
            )
        }
        Some(Freeze { cause: FreezeCause::Throttled(_), .. }) => "the server refused a call; ".to_owned(),
        Some(Freeze { cause: FreezeCause::Failing(_), .. }) => "the server fails; ".to_owned(),
        None => format!("by the numbers of {basis} "),
    }
}

/// Calls that were not made would not have kept the server from refusing.
const fn late_cure(freeze: Option<&Freeze>) -> &'static str {
    match freeze {
        Some(_) => "come back then, or allow a longer wait",
        None => "allow a longer wait or call less often",
    }
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
            Refusal::TooLate { until, .. }
            | Refusal::Exhausted { until, .. }
            | Refusal::CircuitOpen { until, .. } => Some(*until),
            _ => None,
        }
    }

    /// Whose numbers refuse the call. A queue is full by our own settings.
    #[must_use]
    pub const fn basis(&self) -> Option<Basis> {
        match self {
            Refusal::TooLate { basis, .. } => Some(*basis),
            Refusal::Exhausted { .. } | Refusal::CircuitOpen { .. } => Some(Basis::Server),
            Refusal::QueueFull { .. } | Refusal::Never { .. } | Refusal::Forbidden { .. } => {
                Some(Basis::Policy)
            }
            Refusal::Invalid(_) => None,
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The story: 24 h 22 min was shown as 1 d 1 h.
    #[test]
    fn spans_of_a_day_are_shown_to_the_minute() {
        let shown = |seconds| span(Ticks::from_secs(seconds));
        assert_eq!(shown(87_720), "24 h 22 min");
        assert_eq!(
            (shown(86_400), shown(86_340), shown(172_800)),
            ("24 h".into(), "23 h 59 min".into(), "2 d".into())
        );
    }

    /// A message says which bucket, whose numbers, and until when.
    #[test]
    fn messages_name_the_bucket_the_basis_and_the_instant() {
        let (bucket, until) =
            ("api.example.com".to_owned(), Timestamp::from_unix_micros(1_795_032_000_000_001));
        let (wait, max_wait) = (Ticks::from_secs(40), Ticks::from_secs(5));
        let basis = Basis::Server;
        let late_after =
            |freeze| Refusal::TooLate { bucket: bucket.clone(), basis, wait, max_wait, until, freeze };
        let late = late_after(None);
        assert_eq!(
            late.to_string(),
            "api.example.com: by the numbers of the server the call would wait 40 s in all, until \
             2026-11-18T20:00:01Z at the earliest, and may wait 5 s; allow a longer wait or call less often"
        );
        let cause = FreezeCause::Throttled(ThrottleKind::Rate);
        for (statement, begin) in [
            (
                Some(Statement { at: until, wait: Ticks::from_secs(87_660) }),
                "the server refused a call at 2026-11-18T20:00:01Z and said to wait 24 h 21 min",
            ),
            (None, "the server refused a call"),
        ] {
            assert_eq!(
                late_after(Some(Freeze { until, cause, statement })).to_string(),
                format!(
                    "api.example.com: {begin}; the call would wait 40 s in all, until 2026-11-18T20:00:01Z at the \
                     earliest, and may wait 5 s; come back then, or allow a longer wait"
                )
            );
        }
        let exhausted = Refusal::Exhausted {
            bucket: bucket.clone(),
            kind: ThrottleKind::Money,
            wait,
            until,
            statement: None,
        };
        assert_eq!(
            exhausted.to_string(),
            "api.example.com: the server refuses calls (money) for another 40 s, until 2026-11-18T20:00:01Z; \
             raise the budget at the provider"
        );
        let open = Refusal::CircuitOpen { bucket: bucket.clone(), failures: 5, wait, until };
        assert_eq!(
            open.to_string(),
            "api.example.com: the server failed 5 times in a row; the next attempt is made in 40 s, at \
             2026-11-18T20:00:01Z"
        );
        for refusal in [late, exhausted, open] {
            assert_eq!((refusal.until(), refusal.basis()), (Some(until), Some(Basis::Server)));
        }
    }
}
