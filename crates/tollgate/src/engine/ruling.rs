//! What an operator rules about limits for a while, over the policy: off, in shadow, or for a share of keys. Rulings stand beside
//! the policy, by the limits' names, so a reload keeps them; and each is asked whether it still holds at the instant of the decision,
//! so it ends by itself, without a timer and whatever the store does. They live in memory; `resume` takes up what was kept elsewhere.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;

use crate::policy::{Fault, Limit, Matches, Mode, Policy};
use crate::request::CheckRequest;
use crate::time::Timestamp;

/// Most limits that may have a ruling of their own at once.
pub const RULINGS_MAX: usize = 1_000;

/// What an operator says about a limit, whatever its policy says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ruling {
    /// It is not asked: the kill switch.
    Off,
    /// It counts and reports, and never denies.
    Shadow,
    /// It decides for this share of its keys, in per cent, and shadows the others.
    Percent(u8),
}

impl Ruling {
    /// How much it leaves of a limit; the milder of two has less.
    const fn strictness(self) -> u8 {
        match self {
            Ruling::Off => 0,
            Ruling::Shadow => 1,
            Ruling::Percent(percent) => 2 + percent,
        }
    }

    /// The share, if it is more than all.
    const fn excess(self) -> Option<u8> {
        match self {
            Ruling::Percent(percent @ 101..) => Some(percent),
            _ => None,
        }
    }
}

/// A ruling with its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ruled {
    /// What was ruled.
    pub ruling: Ruling,
    /// The first instant at which it no longer holds.
    pub until: Timestamp,
}

/// About which limits a ruling is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope<'a> {
    /// The one of this name.
    Limit(&'a str),
    /// All of them, those of later policies included.
    All,
}

/// Why a ruling was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RulingError {
    /// The policy in force has no such limit.
    #[error("the policy in force has no limit {0:?}; accepted are the names of its limits")]
    UnknownLimit(String),
    /// The limit is off by its policy, so that it is not even looked for.
    #[error("limit {0:?} is off in the policy; change its mode there")]
    OffInPolicy(String),
    /// As many limits are ruled about as may be.
    #[error(
        "{RULINGS_MAX} limits have a ruling of their own; restore some of them, or rule about all limits"
    )]
    TooMany,
    /// More than all.
    #[error("{0} per cent; accepted are 0 to 100")]
    Percent(u8),
    /// A share of the keys of a limit that has only one.
    #[error(
        "limit {0:?} has no `by`, so it has one key only, of which there is no share; accepted are kill and shadow"
    )]
    OneKey(String),
}

/// Every ruling, those included that have ended since the last change.
#[derive(Clone, Debug, Default)]
pub(super) struct Rulings {
    all: Option<Ruled>,
    by_limit: HashMap<String, Ruled>,
}

impl Rulings {
    pub(super) fn new(all: Option<Ruled>, by_limit: Vec<(String, Ruled)>) -> Self {
        Self { all, by_limit: by_limit.into_iter().collect() }
    }

    /// The ruling that holds for a limit: the milder one where two do. A limit without `by` has one key only, so a share of its
    /// keys means nothing, and its policy holds.
    fn about(&self, limit: &Limit, now: Timestamp) -> Option<Ruled> {
        let both = [self.all, self.by_limit.get(limit.name()).copied()];
        let holding = both.into_iter().flatten().filter(|ruled| now < ruled.until);
        let has_keys = !limit.by().is_empty();
        let holding = holding.filter(|ruled| has_keys || !matches!(ruled.ruling, Ruling::Percent(_)));
        // Of two alike the one that lasts longer tells the end.
        holding.min_by_key(|ruled| (ruled.ruling.strictness(), Reverse(ruled.until)))
    }

    fn forget_ended(&mut self, now: Timestamp) {
        self.all = self.all.filter(|ruled| now < ruled.until);
        self.by_limit.retain(|_, ruled| now < ruled.until);
    }
}

/// The rulings of an engine.
#[derive(Debug, Default)]
pub(super) struct Bench {
    /// Whether there is anything to look at. A decision made while it turns is made either way, as one a moment earlier or later.
    any: AtomicBool,
    rulings: ArcSwap<Rulings>,
    /// Held while rulings change, so that two changes do not build on the same predecessor.
    changing: Mutex<()>,
}

impl Bench {
    /// What holds at an instant.
    #[inline]
    pub(super) fn at(&self, now: Timestamp) -> InForce {
        // Acquire: whoever sees that there are rulings sees them.
        let rulings = self.any.load(Ordering::Acquire).then(|| self.rulings.load_full());
        InForce { rulings, now }
    }

    fn change<T>(&self, now: Timestamp, change: impl FnOnce(&mut Rulings) -> T) -> T {
        let _one_at_a_time = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut rulings = Rulings::clone(&self.rulings.load());
        rulings.forget_ended(now);
        let changed = change(&mut rulings);
        let any = rulings.all.is_some() || !rulings.by_limit.is_empty();
        self.rulings.store(Arc::new(rulings));
        self.any.store(any, Ordering::Release);
        changed
    }

    pub(super) fn rule(
        &self,
        policy: &Policy,
        scope: Scope<'_>,
        ruled: Ruled,
        now: Timestamp,
    ) -> Result<(), RulingError> {
        if let Some(percent) = ruled.ruling.excess() {
            return Err(RulingError::Percent(percent));
        }
        let name = match scope {
            Scope::All => {
                self.change(now, |rulings| rulings.all = Some(ruled));
                return Ok(());
            }
            Scope::Limit(name) => name,
        };
        let limit = policy.limits().iter().find(|limit| limit.name() == name);
        let limit = limit.ok_or_else(|| RulingError::UnknownLimit(name.to_owned()))?;
        if limit.mode() == Mode::Off {
            return Err(RulingError::OffInPolicy(name.to_owned()));
        }
        if limit.by().is_empty() && matches!(ruled.ruling, Ruling::Percent(_)) {
            return Err(RulingError::OneKey(name.to_owned()));
        }
        self.change(now, |rulings| {
            if rulings.by_limit.len() >= RULINGS_MAX && !rulings.by_limit.contains_key(name) {
                return Err(RulingError::TooMany);
            }
            rulings.by_limit.insert(name.to_owned(), ruled);
            Ok(())
        })
    }

    /// Takes a ruling back; tells whether there was one.
    pub(super) fn restore(&self, scope: Scope<'_>, now: Timestamp) -> bool {
        self.change(now, |rulings| match scope {
            Scope::Limit(name) => rulings.by_limit.remove(name).is_some(),
            Scope::All => rulings.all.take().is_some(),
        })
    }

    /// Puts these rulings in the place of all that there are, whatever limits the policy has: one about a limit that is gone waits, as
    /// it does over a swap.
    pub(super) fn resume(&self, rulings: Rulings, now: Timestamp) -> Result<(), RulingError> {
        let kinds = rulings.by_limit.values().chain(&rulings.all).map(|ruled| ruled.ruling);
        if let Some(percent) = kinds.into_iter().find_map(Ruling::excess) {
            return Err(RulingError::Percent(percent));
        }
        if rulings.by_limit.len() > RULINGS_MAX {
            return Err(RulingError::TooMany);
        }
        self.replace(rulings, now);
        Ok(())
    }

    fn replace(&self, by: Rulings, now: Timestamp) {
        self.change(now, |rulings| {
            *rulings = by;
            rulings.forget_ended(now);
        });
    }

    /// Takes over what another engine's operator has ruled.
    pub(super) fn follow(&self, other: &Bench, now: Timestamp) {
        self.replace(Rulings::clone(&other.rulings.load()), now);
    }

    /// Every ruling that holds, those about single limits by their names.
    pub(super) fn list(&self, now: Timestamp) -> (Option<Ruled>, Vec<(String, Ruled)>) {
        let mut rulings = Rulings::clone(&self.rulings.load());
        rulings.forget_ended(now);
        let mut by_limit: Vec<_> = rulings.by_limit.into_iter().collect();
        by_limit.sort_unstable_by(|one, other| one.0.cmp(&other.0));
        (rulings.all, by_limit)
    }
}

/// The rulings at the instant of one decision. Taken once, so that a change never splits it.
#[derive(Clone, Debug)]
pub(super) struct InForce {
    rulings: Option<Arc<Rulings>>,
    now: Timestamp,
}

impl InForce {
    pub(super) fn about(&self, limit: &Limit) -> Option<Ruled> {
        self.rulings.as_ref()?.about(limit, self.now)
    }

    /// The ruling that changes what the policy says about a limit: one that is off there stays off.
    pub(super) fn over(&self, limit: &Limit) -> Option<Ruled> {
        self.about(limit).filter(|_| limit.mode() != Mode::Off)
    }

    /// Whether a limit decides, and for which share of keys, for people: see [`InForce::over`].
    pub(super) fn standing(&self, limit: &Limit) -> (Mode, u8) {
        if limit.mode() == Mode::Off { (Mode::Off, limit.enforce_percent()) } else { self.footing(limit) }
    }

    #[inline]
    pub(super) const fn is_any(&self) -> bool {
        self.rulings.is_some()
    }

    pub(super) fn about_all(&self) -> Option<Ruling> {
        let ruled = self.rulings.as_ref()?.all.filter(|ruled| self.now < ruled.until)?;
        Some(ruled.ruling)
    }

    /// Whether a limit decides, and for which share of keys.
    #[inline]
    pub(super) fn footing(&self, limit: &Limit) -> (Mode, u8) {
        match self.rulings.as_ref().and_then(|rulings| rulings.about(limit, self.now)) {
            None => (limit.mode(), limit.enforce_percent()),
            Some(Ruled { ruling: Ruling::Off, .. }) => (Mode::Off, 0),
            Some(Ruled { ruling: Ruling::Shadow, .. }) => (Mode::Shadow, 0),
            Some(Ruled { ruling: Ruling::Percent(percent), .. }) => (Mode::Enforce, percent),
        }
    }

    /// The limits that a request meets and that have a counter for it.
    #[inline]
    pub(super) fn matches(&self, policy: &Policy, views: &[CheckRequest<'_>]) -> Result<Matches, Fault> {
        let mut matches = Matches::new();
        self.match_into(policy, views, &mut matches)?;
        matches.retain(|matched| matched.quota.is_counted());
        Ok(matches)
    }

    /// All limits that a request meets, written where they are needed.
    #[inline]
    pub(super) fn match_into(
        &self,
        policy: &Policy,
        views: &[CheckRequest<'_>],
        matches: &mut Matches,
    ) -> Result<(), Fault> {
        match &self.rulings {
            None => policy.match_into(views, |limit| limit.mode, matches),
            Some(_) => policy.match_into(views, |limit| self.footing(limit).0, matches),
        }
    }
}
