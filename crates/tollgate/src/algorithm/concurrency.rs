//! Concurrency: permits in flight, each with an expiry. A holder gives its permit back; that of a crashed one comes back by
//! itself. Naming permits is left to the caller.

use std::collections::{BTreeMap, BTreeSet};

use crate::outcome::{Outcome, Verdict};
use crate::quota::QuotaError;
use crate::time::{Ticks, Timestamp};

/// Most permits of a limit.
pub const PERMITS_MAX: u64 = 1_000_000;
/// Longest life of a permit that nobody gives back.
pub const TTL_MAX: Ticks = Ticks::from_secs(86_400);

/// The numbers of a concurrency limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Concurrency {
    limit: u64,
    ttl: Ticks,
}

/// The name of a permit. Whoever charges chooses it, and gives back under it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PermitId(pub u64);

/// The permits in flight, by name and in the order in which they expire.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    permits: BTreeMap<PermitId, Permit>,
    expiries: BTreeSet<(Timestamp, PermitId)>,
    held: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Permit {
    units: u64,
    expires_at: Timestamp,
}

impl Concurrency {
    /// `limit` permits at once, each of which lives for `ttl` unless it is given back.
    ///
    /// # Errors
    /// When a number is out of range.
    pub fn new(limit: u64, ttl: Ticks) -> Result<Self, QuotaError> {
        if limit == 0 || limit > PERMITS_MAX {
            return Err(QuotaError::Range {
                field: "concurrency",
                value: limit,
                accepted: format!("1 to {PERMITS_MAX} permits (to switch a limit off use `mode: off`)"),
            });
        }
        if ttl.is_zero() || ttl > TTL_MAX {
            return Err(QuotaError::Range {
                field: "permit_ttl",
                value: ttl.as_micros(),
                accepted: format!("1 to {} microseconds, which is 24 hours", TTL_MAX.as_micros()),
            });
        }
        Ok(Self { limit, ttl })
    }

    /// Permits at once.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// How long a permit lives when nobody gives it back.
    #[must_use]
    pub const fn ttl(&self) -> Ticks {
        self.ttl
    }
}

impl State {
    /// The permits that are remembered, with their units and expiries, in the order in which they expire.
    pub fn permits(&self) -> impl Iterator<Item = (PermitId, u64, Timestamp)> + '_ {
        self.expiries.iter().filter_map(|&(expires_at, id)| {
            let permit = self.permits.get(&id)?;
            Some((id, permit.units, expires_at))
        })
    }

    /// Draws back expiries that lie further ahead of `now` than a permit lives: the clock has stepped back, and a permit
    /// that lives its whole life from now on has lived at least that.
    fn clamp(&mut self, quota: &Concurrency, now: Timestamp) {
        let furthest = now + quota.ttl;
        while let Some(&(expires_at, id)) = self.expiries.last() {
            if expires_at <= furthest {
                break;
            }
            let units = self.remove(id);
            self.insert(id, units, furthest);
        }
    }

    fn insert(&mut self, id: PermitId, units: u64, expires_at: Timestamp) {
        self.permits.insert(id, Permit { units, expires_at });
        self.expiries.insert((expires_at, id));
        self.held += units;
    }

    /// Removes a permit and tells its units; zero when there is none.
    fn remove(&mut self, id: PermitId) -> u64 {
        let Some(permit) = self.permits.remove(&id) else {
            return 0;
        };
        self.expiries.remove(&(permit.expires_at, id));
        self.held -= permit.units;
        permit.units
    }

    /// Whether a permit is in flight at `now`.
    fn is_live(&self, id: PermitId, now: Timestamp) -> bool {
        self.permits
            .get(&id)
            .is_some_and(|permit| permit.expires_at > now)
    }

    /// The units in flight at `now`.
    fn used(&self, now: Timestamp) -> u64 {
        let expired = self.permits().take_while(|&(_, _, expires_at)| expires_at <= now);
        self.held - expired.map(|(_, units, _)| units).sum::<u64>()
    }

    /// The first instant at which at most `most` units are in flight.
    fn falls_to(&self, most: u64) -> Timestamp {
        let mut left = self.held;
        let enough = self.permits().find(|&(_, units, _)| {
            left -= units;
            left <= most
        });
        enough.map_or(Timestamp::default(), |(_, _, expires_at)| expires_at)
    }

    /// Adds units to a permit, which then lives anew, and drops those that have expired.
    fn add(&mut self, quota: &Concurrency, now: Timestamp, id: PermitId, units: u64) {
        while let Some(&(expires_at, expired)) = self.expiries.first() {
            if expires_at > now {
                break;
            }
            self.remove(expired);
        }
        let already = self.remove(id);
        self.insert(id, already + units, now + quota.ttl);
    }

    fn outcome(&self, quota: &Concurrency, now: Timestamp, verdict: Verdict) -> Outcome {
        let used = self.used(now);
        let remaining = quota.limit.saturating_sub(used);
        let last = self.expiries.last();
        let (next_unit_after, reset_after) = if used == 0 {
            (Ticks::ZERO, Ticks::ZERO)
        } else {
            (
                self.falls_to(quota.limit - remaining - 1).since(now),
                last.map_or(Ticks::ZERO, |&(expires_at, _)| expires_at.since(now)),
            )
        };
        Outcome {
            verdict,
            limit: quota.limit,
            remaining,
            next_unit_after,
            reset_after,
        }
    }
}

/// Takes `cost` units under a permit. A permit that is already held is added to and lives anew.
#[must_use]
pub fn charge(
    quota: &Concurrency,
    mut state: State,
    now: Timestamp,
    cost: u64,
    permit: PermitId,
) -> (State, Outcome) {
    state.clamp(quota, now);
    let verdict = if cost > quota.limit {
        Verdict::Never
    } else if cost == 0 {
        Verdict::Allow
    } else if state.used(now) + cost <= quota.limit {
        state.add(quota, now, permit, cost);
        Verdict::Allow
    } else {
        let retry_at = state.falls_to(quota.limit - cost);
        Verdict::Deny {
            retry_after: retry_at.since(now),
        }
    };
    let outcome = state.outcome(quota, now, verdict);
    (state, outcome)
}

/// Gives a permit back. Tells whether it was in flight: giving it back twice, or after it expired, changes nothing.
#[must_use]
pub fn release(_quota: &Concurrency, mut state: State, now: Timestamp, permit: PermitId) -> (State, bool) {
    let released = state.is_live(permit, now);
    if released {
        state.remove(permit);
    }
    (state, released)
}

/// Gives back `units` of a permit, which keeps the rest until its expiry.
#[must_use]
pub fn refund(_quota: &Concurrency, mut state: State, now: Timestamp, permit: PermitId, units: u64) -> State {
    let held = state
        .permits
        .get(&permit)
        .filter(|held| held.expires_at > now)
        .copied();
    if let Some(held) = held {
        state.remove(permit);
        if held.units > units {
            state.insert(permit, held.units - units, held.expires_at);
        }
    }
    state
}

/// From when on the state equals that of a key never seen.
#[must_use]
pub fn idle_at(_quota: &Concurrency, state: &State) -> Timestamp {
    state
        .expiries
        .last()
        .map_or(Timestamp::default(), |&(expires_at, _)| expires_at)
}

/// The state under `quota` of a key that was counted under `previous` until `at`: permits in flight stay in flight, even
/// above a lowered limit. They keep their expiries, but live from now on no longer than the new quota says.
#[must_use]
pub fn inherit(quota: &Concurrency, _previous: &Concurrency, mut state: State, at: Timestamp) -> State {
    state.clamp(quota, at);
    state
}
