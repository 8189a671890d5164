//! What a limit answers while its store does not, in stages: open for a moment, then by this node's share, then closed. Which stage
//! is reached is left to the engine, which knows how long the store has been away.

use crate::time::Ticks;

/// How long a limit stays open that does not say.
const OPEN_FOR: Ticks = Ticks::from_secs(1);
/// Up to how many times this node's share a limit is open that does not say.
const OPEN_UP_TO: u32 = 4;
/// Most time that limits may be open in [`OPEN_WINDOW`], whatever they say and however often the store comes and goes.
pub const OPEN_BUDGET: Ticks = Ticks::from_secs(5);
/// The time that the budget is for.
pub const OPEN_WINDOW: Ticks = Ticks::from_secs(600);
/// Most times this node's share that an open limit may be bounded by; beyond that it can be unlimited.
pub const OPEN_UP_TO_MAX: u32 = 1_000;
/// Longest that a limit may wait before it closes.
pub const DENY_AFTER_MAX: Ticks = Ticks::from_secs(86_400);

/// What a limit answers when its store cannot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnStoreFailure {
    /// Let pass for a second, up to four times this node's share; then decide by the share.
    Allow,
    /// Decide by a bucket in this process, at this node's share.
    #[default]
    Local,
    /// Refuse.
    Deny,
    /// In stages of its own.
    Staged(Stages),
}

/// The stages of an outage, each counted from its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stages {
    /// How long everybody passes, at most [`OPEN_BUDGET`]; no time at all for a limit that is never open.
    pub open_for: Ticks,
    /// Up to how many times this node's share of a period, for each key; `None` is without a bound.
    pub open_up_to: Option<u32>,
    /// From when on nobody passes; `None` is never.
    pub deny_after: Option<Ticks>,
}

impl Stages {
    /// This node's share from the first moment to the last.
    pub const LOCAL: Stages =
        Stages { open_for: Ticks::ZERO, open_up_to: Some(OPEN_UP_TO), deny_after: None };
    /// Open as long and as far as a limit is that says `allow`.
    pub const ALLOW: Stages = Stages { open_for: OPEN_FOR, ..Stages::LOCAL };
    /// Closed at once.
    pub const DENY: Stages = Stages { deny_after: Some(Ticks::ZERO), ..Stages::LOCAL };

    /// Whether this node's share is ever asked.
    pub(crate) fn counts_locally(&self) -> bool {
        self.deny_after.is_none_or(|after| !after.is_zero())
    }
}

impl OnStoreFailure {
    /// What it means.
    #[must_use]
    pub const fn stages(self) -> Stages {
        match self {
            OnStoreFailure::Allow => Stages::ALLOW,
            OnStoreFailure::Local => Stages::LOCAL,
            OnStoreFailure::Deny => Stages::DENY,
            OnStoreFailure::Staged(stages) => stages,
        }
    }
}
