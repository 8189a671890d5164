//! Permits that this process grants without the store, from just before the grant until the store has recorded them. A
//! permit has an id and counts once, so it is reported again and again until the store has answered.
//!
//! Permits that the store grants meanwhile are checked against them: the check counts every permit of this process that
//! the store may not have known of when it granted another.

use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::counter::Counter;
use crate::active::ActivePolicy;
use crate::algorithm::concurrency::PermitId;
use crate::key::Fingerprint;
use crate::store::Charge;
use crate::time::{Ticks, Timestamp};

/// Maximum number of permits that are remembered. Without room for another one, no permit is granted.
const PERMITS_MAX: usize = 10_000;
/// How long a permit is remembered after the store has recorded it: longer than any charge is in flight, whose deadline
/// is far below a second.
const REPORTED_FOR: Ticks = Ticks::from_secs(10);

/// A permit, by its key and its id.
pub(super) type PermitKey = (Fingerprint, PermitId);

/// A permit that the store has yet to record.
pub(super) struct UnreportedPermit {
    pub(super) permit_key: PermitKey,
    pub(super) counter: Counter,
    pub(super) units: u64,
}

/// The permits of this process that the store does not know of, or did not know of a moment ago.
#[derive(Default)]
pub(super) struct UnreportedPermits {
    /// The number of permits remembered, and the number that the store has yet to record; readable without the lock.
    held: AtomicUsize,
    unreported: AtomicUsize,
    /// Counts the permits that the store has recorded. A charge remembers the count at which it was sent.
    reported: AtomicU64,
    permits: Mutex<PermitMap>,
}

#[derive(Default)]
struct PermitMap {
    by_key: BTreeMap<PermitKey, LocalPermit>,
    /// The permits that the store has recorded, in that order.
    reported: VecDeque<(Timestamp, PermitKey)>,
    unreported: usize,
}

#[derive(Debug)]
struct LocalPermit {
    state: PermitState,
    units: u64,
    since: Timestamp,
}

#[derive(Debug)]
enum PermitState {
    /// The share is being asked for it.
    Announced(Counter),
    /// The share granted it, and the store was never asked to record it.
    Given(Counter),
    /// The store was asked to record it, and may have done so.
    Asked(Counter),
    /// The store has recorded it; the number is its ordinal among the recorded permits.
    Reported(u64),
}

impl PermitState {
    /// The counter to report it with, if it has to be reported.
    const fn unreported(&self) -> Option<&Counter> {
        match self {
            PermitState::Given(counter) | PermitState::Asked(counter) => Some(counter),
            PermitState::Announced(_) | PermitState::Reported(_) => None,
        }
    }
}

impl PermitMap {
    fn remove(&mut self, permit_key: &PermitKey) -> Option<LocalPermit> {
        let permit = self.by_key.remove(permit_key)?;
        self.unreported -= usize::from(permit.state.unreported().is_some());
        Some(permit)
    }

    fn insert(&mut self, permit_key: PermitKey, permit: LocalPermit) {
        self.remove(&permit_key);
        self.unreported += usize::from(permit.state.unreported().is_some());
        self.by_key.insert(permit_key, permit);
    }

    /// Forgets permits that are certainly part of the store's answer to every charge in flight.
    fn sweep(&mut self, now: Timestamp) {
        while let Some(&(at, permit_key)) = self.reported.front()
            && now.since(at) >= REPORTED_FOR
        {
            self.reported.pop_front();
            if self
                .by_key
                .get(&permit_key)
                .is_some_and(|permit| matches!(permit.state, PermitState::Reported(_)))
            {
                self.remove(&permit_key);
            }
        }
    }
}

impl UnreportedPermits {
    /// Runs a function on the map, then updates the counts of what it holds.
    fn with<T>(&self, act: impl FnOnce(&mut PermitMap) -> T) -> T {
        // A panicking thread cannot leave the map half changed: each statement leaves it consistent.
        let mut permits: MutexGuard<'_, PermitMap> =
            self.permits.lock().unwrap_or_else(PoisonError::into_inner);
        let done = act(&mut permits);
        // Relaxed: a thread that must see a permit announced it before it took the lock of a share, which orders the
        // two.
        self.held.store(permits.by_key.len(), Ordering::Relaxed);
        self.unreported.store(permits.unreported, Ordering::Relaxed);
        done
    }

    fn is_empty(&self) -> bool {
        self.held.load(Ordering::Relaxed) == 0
    }

    /// The number of permits that the store has yet to record.
    #[inline]
    pub(super) fn unreported(&self) -> usize {
        self.unreported.load(Ordering::Relaxed)
    }

    /// The number of permits that the store has recorded so far: it knows these when the next charge arrives.
    pub(super) fn reported_so_far(&self) -> u64 {
        // Acquire: pairs with the Release in `reported`, so the answers that the number counts happened before.
        self.reported.load(Ordering::Acquire)
    }

    /// Records a permit that the share is about to be asked for, so that a concurrent answer of the store takes it into
    /// account. Returns whether there was room; without room the permit must not be granted.
    pub(super) fn announce(
        &self,
        charge: &Charge<'_>,
        counter: impl FnOnce() -> Counter,
        now: Timestamp,
    ) -> bool {
        self.with(|permits| {
            permits.sweep(now);
            let has_room = permits.by_key.len() < PERMITS_MAX;
            if has_room {
                let state = PermitState::Announced(counter());
                permits.insert(
                    (charge.key, charge.permit),
                    LocalPermit { state, units: charge.cost, since: now },
                );
            }
            has_room
        })
    }

    /// The share has granted the permit.
    pub(super) fn give(&self, charge: &Charge<'_>) {
        let permit_key = (charge.key, charge.permit);
        self.with(|permits| {
            if let Some(LocalPermit { state: PermitState::Announced(counter), units, since }) =
                permits.remove(&permit_key)
            {
                permits.insert(permit_key, LocalPermit { state: PermitState::Given(counter), units, since });
            }
        });
    }

    /// Forgets a permit that was released, or was not granted after all. Returns whether the store cannot know of it.
    pub(super) fn take_back(&self, charge: &Charge<'_>) -> bool {
        if self.is_empty() {
            return false;
        }
        let permit = self.with(|permits| permits.remove(&(charge.key, charge.permit)));
        permit.is_some_and(|permit| matches!(permit.state, PermitState::Announced(_) | PermitState::Given(_)))
    }

    /// Units of the key's permits that the store may not have known of when it answered a charge. The charge was sent
    /// when the store had recorded `reported_before` permits.
    pub(super) fn unknown(&self, charge: &Charge<'_>, reported_before: u64, now: Timestamp) -> u64 {
        if self.is_empty() {
            return 0;
        }
        self.with(|permits| {
            permits.sweep(now);
            let others =
                permits.by_key.range(all_of(charge.key)).filter(|((_, id), _)| *id != charge.permit);
            let is_unknown =
                |permit: &&LocalPermit| !matches!(permit.state, PermitState::Reported(number) if number <= reported_before);
            others.map(|(_, permit)| permit).filter(is_unknown).map(|permit| permit.units).sum()
        })
    }

    /// Whether the store has yet to record permits of one of these keys.
    pub(super) fn has_unreported(&self, charges: &[Charge<'_>]) -> bool {
        let is_unreported = |permits: &mut PermitMap| {
            let mut of_keys = charges.iter().flat_map(|charge| permits.by_key.range(all_of(charge.key)));
            of_keys.any(|(_, permit)| permit.state.unreported().is_some())
        };
        self.unreported() > 0 && self.with(is_unreported)
    }

    /// Any permit that the store has yet to record.
    pub(super) fn any(&self, active: &ActivePolicy) -> Option<(Counter, PermitId)> {
        self.with(|permits| {
            let unreported = |(permit_key, permit): (&PermitKey, &LocalPermit)| {
                Some((permit.state.unreported()?.clone(), permit_key.1))
            };
            let mut unreported = permits.by_key.iter().filter_map(unreported);
            unreported.find(|(counter, permit)| counter.charge(active, *permit, 0).is_some())
        })
    }

    /// The permits of these keys that the store has yet to record, or those of all keys, up to `most`. They stay here
    /// until the store has answered. Permits that have expired, or whose limit is gone, are forgotten.
    pub(super) fn due(
        &self,
        active: &ActivePolicy,
        of: Option<&[Charge<'_>]>,
        most: usize,
        now: Timestamp,
    ) -> Vec<UnreportedPermit> {
        if self.unreported() == 0 {
            return Vec::new();
        }
        self.with(|permits| {
            let is_unreported = |(permit_key, permit): (&PermitKey, &LocalPermit)| {
                permit.state.unreported().map(|_| *permit_key)
            };
            let keys: Vec<PermitKey> = match of {
                Some(charges) => {
                    let each = charges.iter().flat_map(|charge| permits.by_key.range(all_of(charge.key)));
                    each.filter_map(is_unreported).collect()
                }
                None => permits.by_key.iter().filter_map(is_unreported).take(most).collect(),
            };
            let mut due = Vec::new();
            for permit_key in keys {
                let Some(LocalPermit { state, units, since }) = permits.remove(&permit_key) else { continue };
                let Some(counter) = state.unreported().cloned() else { continue };
                let charge = counter.charge(active, permit_key.1, 0);
                if charge.is_some_and(|charge| now.since(since) < charge.quota.memory()) {
                    permits.insert(
                        permit_key,
                        LocalPermit { state: PermitState::Asked(counter.clone()), units, since },
                    );
                    due.push(UnreportedPermit { permit_key, counter, units });
                }
            }
            due
        })
    }

    /// The store has recorded a permit.
    pub(super) fn reported(&self, permit_key: &PermitKey, now: Timestamp) {
        self.with(|permits| {
            if permits.by_key.get(permit_key).is_none_or(|permit| permit.state.unreported().is_none()) {
                return; // It was given back meanwhile, or another request has reported it.
            }
            // Under the lock, so that number and state change together. Release: for a thread that reads the number and
            // then charges the store.
            let number = self.reported.fetch_add(1, Ordering::Release) + 1;
            if let Some(permit) = permits.remove(permit_key) {
                permits.insert(*permit_key, LocalPermit { state: PermitState::Reported(number), ..permit });
            }
            permits.reported.push_back((now, *permit_key));
        });
    }

    /// Renews a permit that its holder still has.
    pub(super) fn renew(&self, charge: &Charge<'_>, now: Timestamp) {
        if !self.is_empty() {
            self.with(|permits| {
                if let Some(permit) = permits.by_key.get_mut(&(charge.key, charge.permit)) {
                    permit.since = now;
                }
            });
        }
    }

    /// Forgets the permits of a key.
    pub(super) fn forget(&self, key: Fingerprint) {
        if !self.is_empty() {
            self.with(|permits| {
                let keys: Vec<PermitKey> =
                    permits.by_key.range(all_of(key)).map(|(permit, _)| *permit).collect();
                keys.iter().for_each(|permit_key| drop(permits.remove(permit_key)));
            });
        }
    }

    /// Forgets all permits. Returns how many of them the store has not recorded.
    pub(super) fn clear(&self) -> usize {
        self.with(|permits| std::mem::take(permits).unreported)
    }
}

/// The range of all permits of a key.
const fn all_of(key: Fingerprint) -> RangeInclusive<PermitKey> {
    (key, PermitId(0))..=(key, PermitId(u64::MAX))
}
