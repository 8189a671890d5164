//! Concurrency: permits, each with an expiry. A holder releases its permit; the permit of a crashed holder expires. The
//! caller chooses permit ids.

use std::collections::{BTreeMap, BTreeSet};

use smallvec::SmallVec;

use crate::outcome::{Outcome, Verdict};
use crate::rate::{EXACT_MAX, QuotaError};
use crate::time::{Ticks, Timestamp};

/// Maximum number of permits of a limit.
pub const PERMITS_MAX: u64 = 1_000_000;
/// Longest life of a permit that is not released.
pub(crate) const TTL_MAX: Ticks = Ticks::from_secs(86_400);

/// The numbers of a concurrency limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Concurrency {
    limit: u64,
    ttl: Ticks,
}

/// The id of a permit. The caller that charges chooses it, and releases under it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PermitId(pub u64);

/// Maximum number of permits in a plain list. Beyond it a linear search would take longer than an index does.
const FEW_MAX: usize = 32;
/// An index becomes a list again when it has only this many permits left, so that one permit more or less does not
/// rebuild it.
const FEW_AGAIN: usize = FEW_MAX / 4;
/// Bytes of an allocator's overhead per allocation.
const ALLOCATION_BYTES: usize = 16;
/// Bytes of a permit in an index: its share of two trees whose nodes are half full.
const INDEXED_BYTES: usize = 80;

/// The permits in flight. Memory grows with the permits that exist, not with the limit.
#[derive(Clone, Debug)]
pub struct State(Permits);

#[derive(Clone, Debug)]
enum Permits {
    /// In the order in which they expire. A single one needs no allocation.
    Few(SmallVec<[PermitEntry; 1]>),
    Many(Box<PermitIndex>),
}

/// A permit. The order of the fields is that of lists: by expiry, then by id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PermitEntry {
    expires_at: Timestamp,
    id: PermitId,
    units: u64,
}

/// Permits by id, and in the order in which they expire.
#[derive(Clone, Debug, Default)]
struct PermitIndex {
    by_id: BTreeMap<PermitId, PermitEntry>,
    expiries: BTreeSet<(Timestamp, PermitId)>,
    held: u64,
}

impl Concurrency {
    /// `limit` permits at once, each of which lives for `ttl` if it is not released.
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
                accepted: format!("1 to {} microseconds: at most 24 hours", TTL_MAX.as_micros()),
            });
        }
        Ok(Self { limit, ttl })
    }

    /// Permits at once.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// How long a permit lives when it is not released.
    #[must_use]
    pub const fn ttl(&self) -> Ticks {
        self.ttl
    }
}

/// Maximum of [`State::heap_bytes`] for such a limit.
pub(crate) const fn heap_bytes_max(quota: &Concurrency) -> u64 {
    size_of::<PermitIndex>() as u64 + ALLOCATION_BYTES as u64 + quota.limit * INDEXED_BYTES as u64
}

impl Default for State {
    fn default() -> Self {
        Self(Permits::Few(SmallVec::new()))
    }
}

/// States with the same permits are equal, in either representation.
impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.permits().eq(other.permits())
    }
}

impl Eq for State {}

impl PermitIndex {
    fn insert(&mut self, permit: PermitEntry) {
        self.by_id.insert(permit.id, permit);
        self.expiries.insert((permit.expires_at, permit.id));
        self.held += permit.units;
    }

    fn remove(&mut self, id: PermitId) -> u64 {
        let Some(permit) = self.by_id.remove(&id) else { return 0 };
        self.expiries.remove(&(permit.expires_at, id));
        self.held -= permit.units;
        permit.units
    }
}

impl State {
    /// How many permits are remembered.
    fn len(&self) -> usize {
        match &self.0 {
            Permits::Few(list) => list.len(),
            Permits::Many(index) => index.by_id.len(),
        }
    }

    /// Bytes that it uses beyond its own size, for memory accounting.
    pub(crate) fn heap_bytes(&self) -> u64 {
        let bytes = match &self.0 {
            Permits::Few(list) if list.spilled() => {
                list.capacity() * size_of::<PermitEntry>() + ALLOCATION_BYTES
            }
            Permits::Few(_) => 0,
            Permits::Many(index) => size_of::<PermitIndex>() + index.by_id.len() * INDEXED_BYTES,
        };
        bytes as u64
    }

    /// The permits that are remembered, with their units and expiries, in the order in which they expire.
    pub fn permits(&self) -> impl Iterator<Item = (PermitId, u64, Timestamp)> + '_ {
        let (few, many) = match &self.0 {
            Permits::Few(list) => (list.as_slice(), None),
            Permits::Many(index) => (&[][..], Some(index)),
        };
        let indexed = many
            .into_iter()
            .flat_map(|index| index.expiries.iter().filter_map(|(_, id)| index.by_id.get(id)));
        few.iter().chain(indexed).map(|permit| (permit.id, permit.units, permit.expires_at))
    }

    /// The state with these permits; `None` if they are not valid.
    pub(crate) fn from_permits(
        permits: impl IntoIterator<Item = (PermitId, u64, Timestamp)>,
    ) -> Option<Self> {
        let mut state = Self::default();
        for (id, units, expires_at) in permits {
            let is_sound = units <= EXACT_MAX - state.held() && state.get(id).is_none();
            if !is_sound {
                return None;
            }
            state.insert(PermitEntry { expires_at, id, units });
        }
        Some(state)
    }

    /// The total units of all remembered permits.
    fn held(&self) -> u64 {
        match &self.0 {
            Permits::Few(list) => list.iter().map(|permit| permit.units).sum(),
            Permits::Many(index) => index.held,
        }
    }

    fn get(&self, id: PermitId) -> Option<PermitEntry> {
        match &self.0 {
            Permits::Few(list) => list.iter().find(|permit| permit.id == id).copied(),
            Permits::Many(index) => index.by_id.get(&id).copied(),
        }
    }

    /// The permit that expires first.
    fn first(&self) -> Option<(Timestamp, PermitId)> {
        match &self.0 {
            Permits::Few(list) => list.first().map(|permit| (permit.expires_at, permit.id)),
            Permits::Many(index) => index.expiries.first().copied(),
        }
    }

    /// The permit that expires last.
    fn last(&self) -> Option<(Timestamp, PermitId)> {
        match &self.0 {
            Permits::Few(list) => list.last().map(|permit| (permit.expires_at, permit.id)),
            Permits::Many(index) => index.expiries.last().copied(),
        }
    }

    /// Pulls back expiries that lie more than two lives ahead of `now`: a larger step back of the clock is not
    /// believed, and a smaller one must not cut a life short.
    fn clamp(&mut self, quota: &Concurrency, now: Timestamp) {
        let furthest = now + quota.ttl + quota.ttl;
        while let Some((expires_at, id)) = self.last() {
            if expires_at <= furthest {
                break;
            }
            let units = self.remove(id);
            self.insert(PermitEntry { expires_at: furthest, id, units });
        }
    }

    fn insert(&mut self, permit: PermitEntry) {
        match &mut self.0 {
            Permits::Few(list) if list.len() < FEW_MAX => {
                let place = list.partition_point(|other| *other < permit);
                list.insert(place, permit);
            }
            Permits::Few(list) => {
                let mut index = Box::<PermitIndex>::default();
                list.drain(..).for_each(|permit| index.insert(permit));
                index.insert(permit);
                self.0 = Permits::Many(index);
            }
            Permits::Many(index) => index.insert(permit),
        }
    }

    /// Removes a permit. Returns its units; zero when there is none. Frees memory that is no longer needed.
    fn remove(&mut self, id: PermitId) -> u64 {
        match &mut self.0 {
            Permits::Few(list) => {
                let Some(place) = list.iter().position(|permit| permit.id == id) else { return 0 };
                let units = list.remove(place).units;
                if list.spilled() && list.len() * 4 <= list.capacity() {
                    list.shrink_to_fit();
                }
                units
            }
            Permits::Many(index) => {
                let units = index.remove(id);
                if index.by_id.len() <= FEW_AGAIN {
                    self.0 = Permits::Few(self.permits_in_order());
                }
                units
            }
        }
    }

    fn permits_in_order(&self) -> SmallVec<[PermitEntry; 1]> {
        self.permits().map(|(id, units, expires_at)| PermitEntry { expires_at, id, units }).collect()
    }

    /// Whether a permit is in flight at `now`.
    fn is_live(&self, id: PermitId, now: Timestamp) -> bool {
        self.get(id).is_some_and(|permit| permit.expires_at > now)
    }

    /// The units in flight at `now`.
    fn used(&self, now: Timestamp) -> u64 {
        let expired = self.permits().take_while(|&(_, _, expires_at)| expires_at <= now);
        self.held() - expired.map(|(_, units, _)| units).sum::<u64>()
    }

    /// The first instant at which at most `most` units are in flight.
    fn falls_to(&self, most: u64) -> Timestamp {
        let mut left = self.held();
        let enough = self.permits().find(|&(_, units, _)| {
            left -= units;
            left <= most
        });
        enough.map_or(Timestamp::default(), |(_, _, expires_at)| expires_at)
    }

    /// Adds units to a permit, which is thereby renewed, and drops those that have expired.
    fn add(&mut self, quota: &Concurrency, now: Timestamp, id: PermitId, units: u64) {
        while let Some((expires_at, expired)) = self.first() {
            if expires_at > now {
                break;
            }
            self.remove(expired);
        }
        let already = self.remove(id);
        self.insert(PermitEntry { expires_at: now + quota.ttl, id, units: already + units });
    }

    fn outcome(&self, quota: &Concurrency, now: Timestamp, verdict: Verdict) -> Outcome {
        let used = self.used(now);
        let remaining = quota.limit.saturating_sub(used);
        let last = self.last();
        let (next_unit_after, reset_after) = if used == 0 {
            (Ticks::ZERO, Ticks::ZERO)
        } else {
            (
                self.falls_to(quota.limit - remaining - 1).since(now),
                last.map_or(Ticks::ZERO, |(expires_at, _)| expires_at.since(now)),
            )
        };
        Outcome { verdict, limit: quota.limit, remaining, next_unit_after, reset_after }
    }
}

/// Takes `cost` units under a permit. Units for a permit that is already held are added, and renew it.
#[must_use]
pub fn charge(
    quota: &Concurrency,
    mut state: State,
    now: Timestamp,
    cost: u64,
    permit: PermitId,
) -> (State, Outcome) {
    let now = now.decidable();
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
        Verdict::Deny { retry_after: retry_at.since(now) }
    };
    let outcome = state.outcome(quota, now, verdict);
    (state, outcome)
}

/// Records a permit that was granted elsewhere, whatever the limit says: its holder has it. A permit that is in flight
/// already stays as it is, so it may be reported twice.
#[must_use]
pub(crate) fn take_note(
    quota: &Concurrency,
    mut state: State,
    now: Timestamp,
    permit: PermitId,
    units: u64,
) -> State {
    let now = now.decidable();
    state.clamp(quota, now);
    if units > 0 && units <= quota.limit && !state.is_live(permit, now) {
        state.add(quota, now, permit, units);
    }
    state
}

/// Releases a permit. Returns whether it was in flight: releasing it twice, or after it expired, changes nothing.
#[must_use]
pub fn release(_quota: &Concurrency, mut state: State, now: Timestamp, permit: PermitId) -> (State, bool) {
    let released = state.is_live(permit, now.decidable());
    if released {
        state.remove(permit);
    }
    (state, released)
}

/// Renews a permit, for a holder that is still running. Returns whether it was in flight: one that was released or has
/// expired stays gone, because another request may have taken its units.
#[must_use]
pub fn renew(quota: &Concurrency, mut state: State, now: Timestamp, permit: PermitId) -> (State, bool) {
    let now = now.decidable();
    let renewed = state.is_live(permit, now);
    if renewed {
        let units = state.remove(permit);
        state.insert(PermitEntry { expires_at: now + quota.ttl, id: permit, units });
    }
    (state, renewed)
}

/// Refunds `units` of a permit, which keeps the rest until its expiry.
#[must_use]
pub fn refund(_quota: &Concurrency, mut state: State, now: Timestamp, permit: PermitId, units: u64) -> State {
    let now = now.decidable();
    let held = state.get(permit).filter(|held| held.expires_at > now);
    if let Some(held) = held {
        state.remove(permit);
        if held.units > units {
            state.insert(PermitEntry { units: held.units - units, ..held });
        }
    }
    state
}

/// From when on the state equals that of a key never seen.
#[must_use]
pub fn idle_at(_quota: &Concurrency, state: &State) -> Timestamp {
    state.last().map_or(Timestamp::default(), |(expires_at, _)| expires_at)
}

/// The state under `quota` of a key that was counted under `previous` until `at`: permits in flight stay in flight,
/// even above a lowered limit, and keep their expiries. Where the new life is much shorter, the next charge pulls them
/// back.
#[must_use]
pub fn inherit(_quota: &Concurrency, _previous: &Concurrency, state: State, _at: Timestamp) -> State {
    state
}

#[cfg(test)]
mod tests;
