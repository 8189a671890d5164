//! Concurrency: permits in flight, each with an expiry. A holder gives its permit back; that of a crashed one comes back by
//! itself. Naming permits is left to the caller.

use std::collections::{BTreeMap, BTreeSet};

use crate::outcome::{Outcome, Verdict};
use crate::quota::{EXACT_MAX, QuotaError};
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

    /// How long a permit lives when nobody gives it back.
    #[must_use]
    pub const fn ttl(&self) -> Ticks {
        self.ttl
    }
}

impl State {
    /// How many parts it has, for those who account for its memory.
    pub(crate) fn len(&self) -> usize {
        self.permits.len()
    }

    /// The permits that are remembered, with their units and expiries, in the order in which they expire.
    pub fn permits(&self) -> impl Iterator<Item = (PermitId, u64, Timestamp)> + '_ {
        self.expiries.iter().filter_map(|&(expires_at, id)| {
            let permit = self.permits.get(&id)?;
            Some((id, permit.units, expires_at))
        })
    }

    /// The permits of such a list; none if it is not what permits can be.
    pub(crate) fn from_permits(
        permits: impl IntoIterator<Item = (PermitId, u64, Timestamp)>,
    ) -> Option<Self> {
        let mut state = Self::default();
        for (id, units, expires_at) in permits {
            let is_sound = units <= EXACT_MAX - state.held && !state.permits.contains_key(&id);
            if !is_sound {
                return None;
            }
            state.insert(id, units, expires_at);
        }
        Some(state)
    }

    /// Draws back expiries that lie more than two lives ahead of `now`: further, no step back of the clock is believed, and
    /// a smaller one must not cut a life short.
    fn clamp(&mut self, quota: &Concurrency, now: Timestamp) {
        let furthest = now + quota.ttl + quota.ttl;
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
        self.permits.get(&id).is_some_and(|permit| permit.expires_at > now)
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
        Outcome { verdict, limit: quota.limit, remaining, next_unit_after, reset_after }
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

/// Gives a permit back. Tells whether it was in flight: giving it back twice, or after it expired, changes nothing.
#[must_use]
pub fn release(_quota: &Concurrency, mut state: State, now: Timestamp, permit: PermitId) -> (State, bool) {
    let released = state.is_live(permit, now.decidable());
    if released {
        state.remove(permit);
    }
    (state, released)
}

/// Lets a permit live anew, for a holder that is still there. Tells whether it was in flight: one that was given back or has expired stays gone,
/// since its place may be another's.
#[must_use]
pub fn renew(quota: &Concurrency, mut state: State, now: Timestamp, permit: PermitId) -> (State, bool) {
    let now = now.decidable();
    let renewed = state.is_live(permit, now);
    if renewed {
        let units = state.remove(permit);
        state.insert(permit, units, now + quota.ttl);
    }
    (state, renewed)
}

/// Gives back `units` of a permit, which keeps the rest until its expiry.
#[must_use]
pub fn refund(_quota: &Concurrency, mut state: State, now: Timestamp, permit: PermitId, units: u64) -> State {
    let now = now.decidable();
    let held = state.permits.get(&permit).filter(|held| held.expires_at > now).copied();
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
    state.expiries.last().map_or(Timestamp::default(), |&(expires_at, _)| expires_at)
}

/// The state under `quota` of a key that was counted under `previous` until `at`: permits in flight stay in flight, even
/// above a lowered limit, and keep their expiries. Where the new life is much shorter, the next charge draws them back.
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

    /// Giving back frees at once, and only once; an expired permit has already come back.
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

    /// A permit that is renewed lives anew, takes no unit more, and only while it lives; also where there is no room for another.
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

    /// A permit that is charged again holds both charges and lives anew: against the caller, and freed by one release.
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

    /// A denial changes nothing, nor does a look; what exceeds the limit never passes.
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

    /// A refund gives back part of a permit, which keeps the rest until its expiry.
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

    /// After a step back no permit dies early, and none lives longer than two lives.
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

    /// A live change keeps permits in flight: raising acts at once, lowering waits until enough have come back.
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

    /// Numbers out of range are refused.
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
