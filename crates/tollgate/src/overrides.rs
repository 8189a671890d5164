//! Overrides: an operator sets limits off, in shadow, or to a percentage of keys for a while, over the policy.
//! Overrides are kept beside the policy, by the limits' names, so they survive a reload. Each decision checks whether
//! an override still applies at its instant. So an override ends by itself, without a timer and whatever the store
//! does. Overrides are kept in memory; `resume` restores those that were saved elsewhere.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;

use crate::policy::{Fault, Limit, Matches, Mode, Policy};
use crate::request::CheckRequest;
use crate::time::Timestamp;

/// Maximum number of limits with an override of their own.
pub const OVERRIDES_MAX: usize = 1_000;

/// An operator's override of a limit's mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LimitOverride {
    /// The limit is not asked: the kill switch.
    Off,
    /// The limit counts and reports, and never denies.
    Shadow,
    /// The limit decides for this percentage of its keys, and is in shadow for the others.
    Percent(u8),
}

impl LimitOverride {
    /// How much of a limit remains in effect; the milder of two overrides has less.
    const fn strictness(self) -> u8 {
        match self {
            LimitOverride::Off => 0,
            LimitOverride::Shadow => 1,
            LimitOverride::Percent(percent) => 2 + percent,
        }
    }

    /// The percentage, if it is above 100.
    const fn excess(self) -> Option<u8> {
        match self {
            LimitOverride::Percent(percent @ 101..) => Some(percent),
            _ => None,
        }
    }
}

/// An override with its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpiringOverride {
    /// The override.
    pub kind: LimitOverride,
    /// The first instant at which it no longer applies.
    pub until: Timestamp,
}

/// Which limits an override applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope<'a> {
    /// The limit with this name.
    Limit(&'a str),
    /// All limits, those of later policies included.
    All,
}

/// Why an override was rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OverrideError {
    /// The active policy has no such limit.
    #[error("the active policy has no limit {0:?}; accepted: the names of its limits")]
    UnknownLimit(String),
    /// The limit is off in the policy, so it is not even matched.
    #[error("limit {0:?} is off in the policy; change its mode there")]
    OffInPolicy(String),
    /// The maximum number of limits have an override.
    #[error(
        "{OVERRIDES_MAX} limits have an override of their own; restore some of them, or override all limits"
    )]
    TooMany,
    /// A percentage above 100.
    #[error("{0} per cent; accepted: 0 to 100")]
    Percent(u8),
    /// A percentage of the keys of a limit that has only one.
    #[error(
        "limit {0:?} has no `by`, so it has one key only, of which there is no share; accepted: kill and shadow"
    )]
    OneKey(String),
}

/// All overrides, including those that have ended since the last change.
#[derive(Clone, Debug, Default)]
pub(crate) struct OverrideSet {
    all: Option<ExpiringOverride>,
    by_limit: HashMap<String, ExpiringOverride>,
}

impl OverrideSet {
    pub(crate) fn new(all: Option<ExpiringOverride>, by_limit: Vec<(String, ExpiringOverride)>) -> Self {
        Self { all, by_limit: by_limit.into_iter().collect() }
    }

    /// The override that applies to a limit: the milder one where two apply. A limit without `by` has only one key, so
    /// a percentage of its keys means nothing, and its policy applies.
    fn about(&self, limit: &Limit, now: Timestamp) -> Option<ExpiringOverride> {
        let both = [self.all, self.by_limit.get(limit.name()).copied()];
        let holding = both.into_iter().flatten().filter(|expiring| now < expiring.until);
        let has_keys = !limit.by().is_empty();
        let holding =
            holding.filter(|expiring| has_keys || !matches!(expiring.kind, LimitOverride::Percent(_)));
        // Of two equal overrides, the one that lasts longer gives the end.
        holding.min_by_key(|expiring| (expiring.kind.strictness(), Reverse(expiring.until)))
    }

    fn forget_ended(&mut self, now: Timestamp) {
        self.all = self.all.filter(|expiring| now < expiring.until);
        self.by_limit.retain(|_, expiring| now < expiring.until);
    }
}

/// The overrides of an engine.
#[derive(Debug, Default)]
pub(crate) struct Overrides {
    /// Whether there are any overrides. A decision that races with a change is decided either way, as if made a moment
    /// earlier or later.
    any: AtomicBool,
    overrides: ArcSwap<OverrideSet>,
    /// Locked while overrides change, so that two changes do not build on the same predecessor.
    changing: Mutex<()>,
}

impl Overrides {
    /// The overrides at an instant.
    #[inline]
    pub(crate) fn at(&self, now: Timestamp) -> ActiveOverrides {
        // Acquire: a thread that sees the flag also sees the overrides.
        let overrides = self.any.load(Ordering::Acquire).then(|| self.overrides.load_full());
        ActiveOverrides { overrides, now }
    }

    fn change<T>(&self, now: Timestamp, change: impl FnOnce(&mut OverrideSet) -> T) -> T {
        let _one_at_a_time = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut overrides = OverrideSet::clone(&self.overrides.load());
        overrides.forget_ended(now);
        let changed = change(&mut overrides);
        let any = overrides.all.is_some() || !overrides.by_limit.is_empty();
        self.overrides.store(Arc::new(overrides));
        self.any.store(any, Ordering::Release);
        changed
    }

    pub(crate) fn rule(
        &self,
        policy: &Policy,
        scope: Scope<'_>,
        expiring: ExpiringOverride,
        now: Timestamp,
    ) -> Result<(), OverrideError> {
        if let Some(percent) = expiring.kind.excess() {
            return Err(OverrideError::Percent(percent));
        }
        let name = match scope {
            Scope::All => {
                self.change(now, |overrides| overrides.all = Some(expiring));
                return Ok(());
            }
            Scope::Limit(name) => name,
        };
        let limit = policy.limits().iter().find(|limit| limit.name() == name);
        let limit = limit.ok_or_else(|| OverrideError::UnknownLimit(name.to_owned()))?;
        if limit.mode() == Mode::Off {
            return Err(OverrideError::OffInPolicy(name.to_owned()));
        }
        if limit.by().is_empty() && matches!(expiring.kind, LimitOverride::Percent(_)) {
            return Err(OverrideError::OneKey(name.to_owned()));
        }
        self.change(now, |overrides| {
            if overrides.by_limit.len() >= OVERRIDES_MAX && !overrides.by_limit.contains_key(name) {
                return Err(OverrideError::TooMany);
            }
            overrides.by_limit.insert(name.to_owned(), expiring);
            Ok(())
        })
    }

    /// Removes an override. Returns whether there was one.
    pub(crate) fn restore(&self, scope: Scope<'_>, now: Timestamp) -> bool {
        self.change(now, |overrides| match scope {
            Scope::Limit(name) => overrides.by_limit.remove(name).is_some(),
            Scope::All => overrides.all.take().is_some(),
        })
    }

    /// Replaces all overrides with these, whatever limits the policy has: an override of a limit that is gone waits, as
    /// it does over a swap.
    pub(crate) fn resume(&self, overrides: OverrideSet, now: Timestamp) -> Result<(), OverrideError> {
        let kinds = overrides.by_limit.values().chain(&overrides.all).map(|expiring| expiring.kind);
        if let Some(percent) = kinds.into_iter().find_map(LimitOverride::excess) {
            return Err(OverrideError::Percent(percent));
        }
        if overrides.by_limit.len() > OVERRIDES_MAX {
            return Err(OverrideError::TooMany);
        }
        self.replace(overrides, now);
        Ok(())
    }

    fn replace(&self, by: OverrideSet, now: Timestamp) {
        self.change(now, |overrides| {
            *overrides = by;
            overrides.forget_ended(now);
        });
    }

    /// Copies the overrides of another engine.
    pub(crate) fn follow(&self, other: &Overrides, now: Timestamp) {
        self.replace(OverrideSet::clone(&other.overrides.load()), now);
    }
}

/// The overrides at the instant of one decision. Loaded once, so that a change never splits a decision.
#[derive(Clone, Debug)]
pub struct ActiveOverrides {
    overrides: Option<Arc<OverrideSet>>,
    now: Timestamp,
}

impl ActiveOverrides {
    /// The override of all limits, if there is one.
    #[must_use]
    pub fn of_all(&self) -> Option<LimitOverride> {
        let expiring = self.overrides.as_ref()?.all.filter(|expiring| self.now < expiring.until)?;
        Some(expiring.kind)
    }

    /// The override of a limit. Where an override of the limit and one of all limits apply, it is the milder one. `None`
    /// for a limit that is off in the policy, which no override turns on.
    #[must_use]
    pub fn of(&self, limit: &Limit) -> Option<ExpiringOverride> {
        self.about(limit).filter(|_| limit.mode() != Mode::Off)
    }

    /// Whether a limit decides, and for which share of keys, overrides included.
    #[must_use]
    pub fn mode_of(&self, limit: &Limit) -> (Mode, u8) {
        if limit.mode() == Mode::Off {
            (Mode::Off, limit.enforce_percent())
        } else {
            self.matching_mode(limit)
        }
    }

    /// All overrides: the one of all limits, and those of single limits by name.
    #[must_use]
    pub fn list(&self) -> (Option<ExpiringOverride>, Vec<(String, ExpiringOverride)>) {
        let mut overrides = self.overrides.as_deref().cloned().unwrap_or_default();
        overrides.forget_ended(self.now);
        let mut by_limit: Vec<_> = overrides.by_limit.into_iter().collect();
        by_limit.sort_unstable_by(|one, other| one.0.cmp(&other.0));
        (overrides.all, by_limit)
    }

    #[inline]
    fn about(&self, limit: &Limit) -> Option<ExpiringOverride> {
        self.overrides.as_ref()?.about(limit, self.now)
    }

    /// The mode of a limit that is not off in the policy, and for which share of keys it decides.
    #[inline]
    pub(crate) fn matching_mode(&self, limit: &Limit) -> (Mode, u8) {
        match self.about(limit) {
            None => (limit.mode(), limit.enforce_percent()),
            Some(ExpiringOverride { kind: LimitOverride::Off, .. }) => (Mode::Off, 0),
            Some(ExpiringOverride { kind: LimitOverride::Shadow, .. }) => (Mode::Shadow, 0),
            Some(ExpiringOverride { kind: LimitOverride::Percent(percent), .. }) => (Mode::Enforce, percent),
        }
    }

    /// The limits that a request matches and that have a counter for it.
    #[inline]
    pub(crate) fn matches(&self, policy: &Policy, request: &CheckRequest<'_>) -> Result<Matches, Fault> {
        let mut matches = Matches::new();
        self.match_into(policy, request, &mut matches)?;
        matches.retain(|matched| matched.quota.is_counted());
        Ok(matches)
    }

    /// Writes all limits that a request matches to `matches`.
    #[inline]
    pub(crate) fn match_into(
        &self,
        policy: &Policy,
        request: &CheckRequest<'_>,
        matches: &mut Matches,
    ) -> Result<(), Fault> {
        match &self.overrides {
            None => policy.match_into(request, matches),
            Some(_) => policy.match_as(request, |limit| self.matching_mode(limit).0, matches),
        }
    }
}
