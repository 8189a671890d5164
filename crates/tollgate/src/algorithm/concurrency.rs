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
mod tests {
    use super::*;

    const T0: Timestamp = Timestamp::from_unix_seconds(1_700_000_000);

    fn permits(limit: u64) -> Concurrency {
        Concurrency::new(limit, Ticks::from_secs(30)).unwrap()
    }

    fn after(seconds: u64) -> Timestamp {
        T0 + Ticks::from_secs(seconds)
    }

    /// Permits 0, 1, 2, … taken at the given seconds with the given units.
    fn taken(quota: &Concurrency, hits: &[(u64, u64)]) -> State {
        let numbered = (0..).map(PermitId).zip(hits);
        numbered.fold(State::default(), |state, (id, &(seconds, cost))| {
            let (next, outcome) = charge(quota, state, after(seconds), cost, id);
            assert!(outcome.is_allowed());
            next
        })
    }

    fn remaining(quota: &Concurrency, state: &State, now: Timestamp) -> u64 {
        charge(quota, state.clone(), now, 0, PermitId(99)).1.remaining
    }

    /// Retry advice is exact for every cost: one tick early is denied, on the tick enough permits have expired.
    #[test]
    fn every_time_told_is_exact_to_the_tick() {
        let quota = permits(10);
        let state = taken(&quota, &[(0, 2), (5, 3), (5, 1), (9, 4)]);
        for cost in 1..=10 {
            let (state, denied) = charge(&quota, state.clone(), after(10), cost, PermitId(99));
            let retry_at = after(10) + denied.verdict.retry_after().unwrap();
            let at = |now| charge(&quota, state.clone(), now, cost, PermitId(99)).1.is_allowed();
            assert!(!at(retry_at - Ticks::ONE) && at(retry_at));
        }
        let look = charge(&quota, state.clone(), after(10), 0, PermitId(99)).1;
        assert_eq!((look.remaining, look.next_unit_after), (0, after(30).since(after(10))));
        assert_eq!(look.reset_after, after(39).since(after(10)));
        assert_eq!(idle_at(&quota, &state), after(39));
        assert_eq!(remaining(&quota, &state, after(39)), 10);
    }

    /// A release frees units at once, and only once; an expired permit has already come back.
    #[test]
    fn release_is_idempotent() {
        let quota = permits(3);
        let state = taken(&quota, &[(0, 2), (1, 1)]);
        let (state, released) = release(&quota, state, after(2), PermitId(0));
        assert!(released);
        assert_eq!(remaining(&quota, &state, after(2)), 2);
        let (state, again) = release(&quota, state, after(2), PermitId(0));
        assert!(!again);
        let (state, expired) = release(&quota, state, after(31), PermitId(1));
        assert!(!expired);
        assert_eq!(remaining(&quota, &state, after(31)), 3);
    }

    /// A renewed permit gets a new life and takes no further unit, but only while it lives; also where there is no room
    /// for another.
    #[test]
    fn a_renewed_permit_lives_anew() {
        let quota = permits(3);
        let state = taken(&quota, &[(0, 2), (1, 1)]);
        let (state, renewed) = renew(&quota, state, after(20), PermitId(0));
        assert!(renewed);
        assert_eq!((remaining(&quota, &state, after(20)), remaining(&quota, &state, after(31))), (0, 1));
        assert_eq!((idle_at(&quota, &state), remaining(&quota, &state, after(50))), (after(50), 3));
        for gone in [PermitId(1), PermitId(7)] {
            let (unchanged, renewed) = renew(&quota, state.clone(), after(31), gone);
            assert_eq!((unchanged, renewed), (state.clone(), false), "{gone:?}");
        }
    }

    /// A permit that is charged again holds both charges and is renewed: that counts against the caller, and one
    /// release frees both.
    #[test]
    fn a_permit_charged_again_is_added_to() {
        let quota = permits(3);
        let state = taken(&quota, &[(0, 1)]);
        let (state, outcome) = charge(&quota, state, after(10), 2, PermitId(0));
        assert_eq!((outcome.remaining, idle_at(&quota, &state)), (0, after(40)));
        let (state, released) = release(&quota, state, after(11), PermitId(0));
        assert!(released);
        assert_eq!(state, State::default());
    }

    /// Neither a denial nor a look changes anything; a cost above the limit never passes.
    #[test]
    fn denials_and_looks_change_nothing() {
        let quota = permits(3);
        let state = taken(&quota, &[(0, 2), (1, 1)]);
        for (cost, now) in [(1, after(2)), (3, after(30)), (0, after(90)), (4, after(90))] {
            assert_eq!(charge(&quota, state.clone(), now, cost, PermitId(7)).0, state);
        }
        let verdict = charge(&quota, state, after(90), 4, PermitId(7)).1.verdict;
        assert_eq!(verdict, Verdict::Never);
    }

    /// A refund returns part of a permit, which keeps the rest until its expiry.
    #[test]
    fn refunds_give_back_a_part() {
        let quota = permits(5);
        let state = taken(&quota, &[(0, 5)]);
        let state = refund(&quota, state, after(1), PermitId(0), 3);
        assert_eq!(remaining(&quota, &state, after(1)), 3);
        assert_eq!(idle_at(&quota, &state), after(30));
        assert_eq!(refund(&quota, state.clone(), after(1), PermitId(0), 3), State::default());
        assert_eq!(refund(&quota, state.clone(), after(1), PermitId(8), 3), state);
    }

    /// After the clock steps back no permit expires early, and none lives longer than two lives.
    #[test]
    fn steps_back_prolong_by_one_life_at_most() {
        let quota = permits(2);
        let state = taken(&quota, &[(0, 1), (20, 1)]);
        let (state, denied) = charge(&quota, state, T0 - Ticks::from_secs(10), 1, PermitId(9));
        assert_eq!(denied.verdict.retry_after(), Some(Ticks::from_secs(40)));
        let long_ago = T0 - Ticks::from_secs(86_400);
        let two_lives = quota.ttl() + quota.ttl();
        let (state, denied) = charge(&quota, state, long_ago, 1, PermitId(9));
        assert_eq!(denied.verdict.retry_after(), Some(two_lives));
        assert_eq!(idle_at(&quota, &state), long_ago + two_lives);
        assert_eq!(remaining(&quota, &state, long_ago + two_lives), 2);
    }

    /// A live change keeps permits in flight: raising applies at once, lowering waits until enough have come back.
    #[test]
    fn changed_limits_keep_permits() {
        let state = taken(&permits(5), &[(0, 2), (1, 2)]);
        let raised = inherit(&permits(9), &permits(5), state.clone(), after(2));
        assert_eq!(remaining(&permits(9), &raised, after(2)), 5);
        let lowered = inherit(&permits(2), &permits(9), raised, after(2));
        let look = charge(&permits(2), lowered.clone(), after(2), 0, PermitId(9)).1;
        assert_eq!((look.remaining, look.next_unit_after), (0, after(31).since(after(2))));
        let shorter = Concurrency::new(5, Ticks::from_secs(1)).unwrap();
        let kept = inherit(&shorter, &permits(2), lowered.clone(), after(2));
        assert_eq!(kept, lowered);
        let (drawn_back, _) = charge(&shorter, kept, after(2), 0, PermitId(9));
        assert_eq!(idle_at(&shorter, &drawn_back), after(4));
    }

    /// A list that becomes an index, and an index that becomes a list again, have the same permits. Released permits
    /// use no memory any more, and a single permit never uses any.
    #[test]
    fn permits_are_the_same_however_they_are_kept() {
        let quota = permits(1_000);
        let mut state = State::default();
        let mut expected = Vec::new();
        for id in 0..200 {
            state = charge(&quota, state, after(id / 10), 1 + id % 3, PermitId(id ^ 0x55)).0;
            expected.push((PermitId(id ^ 0x55), 1 + id % 3, after(id / 10 + 30)));
            let mut listed: Vec<_> = state.permits().collect();
            assert!(listed.is_sorted_by_key(|&(_, _, expires_at)| expires_at));
            listed.sort();
            expected.sort();
            assert_eq!(listed, expected);
            assert_eq!(state, State::from_permits(state.permits()).unwrap());
        }
        assert!(matches!(state.0, Permits::Many(_)));
        while let Some((id, ..)) = expected.pop() {
            let (next, released) = release(&quota, state, after(20), id);
            assert!(released);
            state = next;
            assert_eq!(state, State::from_permits(state.permits()).unwrap());
            assert_eq!(
                remaining(&quota, &state, after(20)),
                1_000 - expected.iter().map(|e| e.1).sum::<u64>()
            );
            assert!(state.heap_bytes() <= 512 + 2 * 80 * expected.len() as u64, "{}", state.heap_bytes());
        }
        assert_eq!((state.heap_bytes(), taken(&quota, &[(0, 5)]).heap_bytes()), (0, 0));
    }

    /// Numbers out of range are rejected.
    #[test]
    fn numbers_out_of_range_are_refused() {
        let second = Ticks::from_secs(1);
        assert!(Concurrency::new(PERMITS_MAX, TTL_MAX).is_ok());
        for (limit, ttl) in
            [(0, second), (PERMITS_MAX + 1, second), (1, Ticks::ZERO), (1, TTL_MAX + Ticks::ONE)]
        {
            assert!(matches!(Concurrency::new(limit, ttl), Err(QuotaError::Range { .. })));
        }
    }
}
