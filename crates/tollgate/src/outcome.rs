//! The outcome of one charge to one limit, and its source. Combining several outcomes is left to `decision`.

use crate::time::Ticks;

/// The answer to a caller, or of one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Pass now.
    Allow,
    /// Pass, but only after waiting this long: a shaping limit has already given the request its slot.
    Wait(Ticks),
    /// Denied now; the same request is admitted after this long, absent other traffic, and not one tick earlier.
    Deny {
        /// How long to wait.
        retry_after: Ticks,
    },
    /// Denied for ever: the cost exceeds what the limit could ever admit at once.
    Never,
    /// Denied whatever was counted: the limit's value for the request is `deny`. Only another policy changes that.
    Forbidden,
}

impl Verdict {
    /// Whether the request passes, now or after its wait.
    #[must_use]
    pub const fn is_allowed(self) -> bool {
        matches!(self, Verdict::Allow | Verdict::Wait(_))
    }

    /// When to retry: only a denial that waiting cures has it.
    #[must_use]
    pub const fn retry_after(self) -> Option<Ticks> {
        match self {
            Verdict::Deny { retry_after } => Some(retry_after),
            _ => None,
        }
    }
}

/// One limit's outcome, with its numbers after the charge. Carries durations, never instants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The verdict of the limit.
    pub verdict: Verdict,
    /// The most that can be admitted at once: burst, window limit, queue and one in service, or permits.
    pub limit: u64,
    /// Units that could be admitted right now, after this charge.
    pub remaining: u64,
    /// Time until one more unit than `remaining` is available; zero when nothing is used.
    pub next_unit_after: Ticks,
    /// Time until the counter is as if never used, absent other traffic.
    pub reset_after: Ticks,
}

impl Outcome {
    /// The outcome of a limit that counts nothing for a request: its numbers mean nothing.
    #[must_use]
    pub const fn uncounted(verdict: Verdict) -> Self {
        Self { verdict, limit: 0, remaining: 0, next_unit_after: Ticks::ZERO, reset_after: Ticks::ZERO }
    }

    /// Whether the charge was admitted.
    #[must_use]
    pub const fn is_allowed(&self) -> bool {
        self.verdict.is_allowed()
    }

    /// Whether the counter remembers anything: one that does not is as if its key had never been seen.
    #[must_use]
    pub const fn is_touched(&self) -> bool {
        !self.reset_after.is_zero()
    }
}

/// Where an answer came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// The counter itself.
    Exact,
    /// The counter that new keys of a limit share while the memory store is full.
    Overflow,
    /// Units of a lease, acquired from the store ahead of time.
    Lease,
    /// A denial remembered until its retry time.
    DenyCache,
    /// This process's fallback counter, because the store did not answer.
    Local,
    /// No counter: the store did not answer and the limit admits every request.
    Open,
    /// No counter: the store did not answer and the limit denies every request.
    Closed,
    /// No counter: the store had no room, neither for the counter nor for a shared one.
    Full,
    /// The policy itself, which says `unlimited` or `deny` for the request, so that no counter was asked.
    Policy,
    /// The limit's `block_for`: it has denied the key too often, and blocks it for a while.
    Penalty,
}

impl Source {
    /// Its name in answers and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Source::Exact => "exact",
            Source::Overflow => "overflow",
            Source::Lease => "lease",
            Source::DenyCache => "deny-cache",
            Source::Local => "local",
            Source::Open => "open",
            Source::Closed => "closed",
            Source::Full => "full",
            Source::Policy => "policy",
            Source::Penalty => "penalty",
        }
    }

    /// Whether the answer has numbers to show, including those of a quota whose counter was not asked.
    #[must_use]
    pub const fn has_numbers(self) -> bool {
        !matches!(self, Source::Policy | Source::Penalty)
    }

    /// Whether the answer comes from a counter. If it does not, its numbers mean nothing.
    #[must_use]
    pub const fn is_counted(self) -> bool {
        !matches!(self, Source::Open | Source::Closed | Source::Full | Source::Policy | Source::Penalty)
    }
}
