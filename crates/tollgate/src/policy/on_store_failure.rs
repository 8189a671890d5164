//! The fallback of a limit while its store is unreachable, in stages: open for a moment, then by this node's share, then
//! closed. The engine knows how long the outage lasts and selects the stage.

use crate::time::Ticks;

/// Default time for which a limit stays open.
const OPEN_FOR: Ticks = Ticks::from_secs(1);
/// Default multiple of this node's share up to which a limit is open.
const OPEN_UP_TO: u32 = 4;
/// Most time that limits may be open in [`OPEN_WINDOW`], for all policies and any number of outages.
pub(crate) const OPEN_BUDGET: Ticks = Ticks::from_secs(5);
/// The window of the budget.
pub(crate) const OPEN_WINDOW: Ticks = Ticks::from_secs(600);
/// Highest multiple of this node's share that can bound an open limit. A higher one should be without a bound.
pub(crate) const OPEN_UP_TO_MAX: u32 = 1_000;
/// Longest time before a limit closes.
pub(crate) const DENY_AFTER_MAX: Ticks = Ticks::from_secs(86_400);

/// The fallback of a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnStoreFailure {
    /// Let pass for a second, up to four times this node's share; then decide by the share.
    Allow,
    /// Decide by a bucket in this process, at this node's share.
    #[default]
    Local,
    /// Refuse.
    Deny,
    /// Custom stages.
    Staged(Stages),
}

/// The stages of an outage, each counted from its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stages {
    /// How long every request passes, at most `OPEN_BUDGET`; zero for a limit that is never open.
    pub open_for: Ticks,
    /// Up to how many times this node's share of a period, for each key; `None` is without a bound.
    pub open_up_to: Option<u32>,
    /// When the limit closes, so that no request passes; `None` is never.
    pub deny_after: Option<Ticks>,
}

impl Stages {
    /// This node's share from the first moment to the last.
    pub(crate) const LOCAL: Stages =
        Stages { open_for: Ticks::ZERO, open_up_to: Some(OPEN_UP_TO), deny_after: None };
    /// The stages of `allow`.
    pub const ALLOW: Stages = Stages { open_for: OPEN_FOR, ..Stages::LOCAL };
    /// Closed from the start.
    pub const DENY: Stages = Stages { deny_after: Some(Ticks::ZERO), ..Stages::LOCAL };

    /// Whether this node's share is ever used.
    pub(crate) fn counts_locally(&self) -> bool {
        self.deny_after.is_none_or(|after| !after.is_zero())
    }
}

impl OnStoreFailure {
    /// Its stages.
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
