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
pub(super) type Name = (Fingerprint, PermitId);

/// A permit that the store has yet to record.
pub(super) struct Owed {
    pub(super) name: Name,
    pub(super) counter: Counter,
    pub(super) units: u64,
}

/// The permits of this process that the store does not know of, or did not know of a moment ago.
#[derive(Default)]
pub(super) struct UnreportedPermits {
    /// The number of permits remembered, and the number that the store has yet to record; readable without the lock.
    held: AtomicUsize,
    owed: AtomicUsize,
    /// Counts the permits that the store has recorded. A charge remembers the count at which it was sent.
    reported: AtomicU64,
    book: Mutex<PermitMap>,
}

#[derive(Default)]
struct PermitMap {
    places: BTreeMap<Name, LocalPermit>,
    /// The permits that the store has recorded, in that order.
    reported: VecDeque<(Timestamp, Name)>,
    owed: usize,
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
    const fn owed(&self) -> Option<&Counter> {
        match self {
            PermitState::Given(counter) | PermitState::Asked(counter) => Some(counter),
            PermitState::Announced(_) | PermitState::Reported(_) => None,
        }
    }
}

impl PermitMap {
    fn remove(&mut self, name: &Name) -> Option<LocalPermit> {
        let place = self.places.remove(name)?;
        self.owed -= usize::from(place.state.owed().is_some());
        Some(place)
    }

    fn insert(&mut self, name: Name, place: LocalPermit) {
        self.remove(&name);
        self.owed += usize::from(place.state.owed().is_some());
        self.places.insert(name, place);
    }

    /// Forgets permits that are certainly part of the store's answer to every charge in flight.
    fn sweep(&mut self, now: Timestamp) {
        while let Some(&(at, name)) = self.reported.front()
            && now.since(at) >= REPORTED_FOR
        {
            self.reported.pop_front();
            if self.places.get(&name).is_some_and(|place| matches!(place.state, PermitState::Reported(_))) {
                self.remove(&name);
            }
        }
    }
}

impl UnreportedPermits {
    /// Runs a function on the book, then updates the counts of what it holds.
    fn with<T>(&self, act: impl FnOnce(&mut PermitMap) -> T) -> T {
        // A panicking thread cannot leave the book half changed: each statement leaves it consistent.
        let mut book: MutexGuard<'_, PermitMap> = self.book.lock().unwrap_or_else(PoisonError::into_inner);
        let done = act(&mut book);
        // Relaxed: a thread that must see a permit announced it before it took the lock of a share, which orders the
        // two.
        self.held.store(book.places.len(), Ordering::Relaxed);
        self.owed.store(book.owed, Ordering::Relaxed);
        done
    }

    fn is_empty(&self) -> bool {
        self.held.load(Ordering::Relaxed) == 0
    }

    /// The number of permits that the store has yet to record.
    #[inline]
    pub(super) fn owed(&self) -> usize {
        self.owed.load(Ordering::Relaxed)
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
        self.with(|book| {
            book.sweep(now);
            let has_room = book.places.len() < PERMITS_MAX;
            if has_room {
                let state = PermitState::Announced(counter());
                book.insert(
                    (charge.key, charge.permit),
                    LocalPermit { state, units: charge.cost, since: now },
                );
            }
            has_room
        })
    }

    /// The share has granted the permit.
    pub(super) fn give(&self, charge: &Charge<'_>) {
        let name = (charge.key, charge.permit);
        self.with(|book| {
            if let Some(LocalPermit { state: PermitState::Announced(counter), units, since }) =
                book.remove(&name)
            {
                book.insert(name, LocalPermit { state: PermitState::Given(counter), units, since });
            }
        });
    }

    /// Forgets a permit that was released, or was not granted after all. Returns whether the store cannot know of it.
    pub(super) fn take_back(&self, charge: &Charge<'_>) -> bool {
        if self.is_empty() {
            return false;
        }
        let place = self.with(|book| book.remove(&(charge.key, charge.permit)));
        place.is_some_and(|place| matches!(place.state, PermitState::Announced(_) | PermitState::Given(_)))
    }

    /// Units of the key's permits that the store may not have known of when it answered a charge. The charge was sent
    /// when the store had recorded `reported_before` permits.
    pub(super) fn unknown(&self, charge: &Charge<'_>, reported_before: u64, now: Timestamp) -> u64 {
        if self.is_empty() {
            return 0;
        }
        self.with(|book| {
            book.sweep(now);
            let others =
                book.places.range(all_of(charge.key)).filter(|((_, name), _)| *name != charge.permit);
            let is_unknown =
                |place: &&LocalPermit| !matches!(place.state, PermitState::Reported(number) if number <= reported_before);
            others.map(|(_, place)| place).filter(is_unknown).map(|place| place.units).sum()
        })
    }

    /// Whether the store has yet to record permits of one of these keys.
    pub(super) fn owes(&self, charges: &[Charge<'_>]) -> bool {
        let is_owed = |book: &mut PermitMap| {
            let mut places = charges.iter().flat_map(|charge| book.places.range(all_of(charge.key)));
            places.any(|(_, place)| place.state.owed().is_some())
        };
        self.owed() > 0 && self.with(is_owed)
    }

    /// Any permit that the store has yet to record.
    pub(super) fn any(&self, active: &ActivePolicy) -> Option<(Counter, PermitId)> {
        self.with(|book| {
            let owed = |(name, place): (&Name, &LocalPermit)| Some((place.state.owed()?.clone(), name.1));
            let mut owed = book.places.iter().filter_map(owed);
            owed.find(|(counter, permit)| counter.charge(active, *permit, 0).is_some())
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
    ) -> Vec<Owed> {
        if self.owed() == 0 {
            return Vec::new();
        }
        self.with(|book| {
            let is_owed = |(name, place): (&Name, &LocalPermit)| place.state.owed().map(|_| *name);
            let names: Vec<Name> = match of {
                Some(charges) => {
                    let each = charges.iter().flat_map(|charge| book.places.range(all_of(charge.key)));
                    each.filter_map(is_owed).collect()
                }
                None => book.places.iter().filter_map(is_owed).take(most).collect(),
            };
            let mut due = Vec::new();
            for name in names {
                let Some(LocalPermit { state, units, since }) = book.remove(&name) else { continue };
                let Some(counter) = state.owed().cloned() else { continue };
                let charge = counter.charge(active, name.1, 0);
                if charge.is_some_and(|charge| now.since(since) < charge.quota.memory()) {
                    book.insert(
                        name,
                        LocalPermit { state: PermitState::Asked(counter.clone()), units, since },
                    );
                    due.push(Owed { name, counter, units });
                }
            }
            due
        })
    }

    /// The store has recorded a permit.
    pub(super) fn reported(&self, name: &Name, now: Timestamp) {
        self.with(|book| {
            if book.places.get(name).is_none_or(|place| place.state.owed().is_none()) {
                return; // It was given back meanwhile, or another request has reported it.
            }
            // Under the lock, so that number and state change together. Release: for a thread that reads the number and
            // then charges the store.
            let number = self.reported.fetch_add(1, Ordering::Release) + 1;
            if let Some(place) = book.remove(name) {
                book.insert(*name, LocalPermit { state: PermitState::Reported(number), ..place });
            }
            book.reported.push_back((now, *name));
        });
    }

    /// Renews a permit that its holder still has.
    pub(super) fn renew(&self, charge: &Charge<'_>, now: Timestamp) {
        if !self.is_empty() {
            self.with(|book| {
                if let Some(place) = book.places.get_mut(&(charge.key, charge.permit)) {
                    place.since = now;
                }
            });
        }
    }

    /// Forgets the permits of a key.
    pub(super) fn forget(&self, key: Fingerprint) {
        if !self.is_empty() {
            self.with(|book| {
                let names: Vec<Name> = book.places.range(all_of(key)).map(|(name, _)| *name).collect();
                names.iter().for_each(|name| drop(book.remove(name)));
            });
        }
    }

    /// Forgets all permits. Returns how many of them the store has not recorded.
    pub(super) fn clear(&self) -> usize {
        self.with(|book| std::mem::take(book).owed)
    }
}

/// The range of all permits of a key.
const fn all_of(key: Fingerprint) -> RangeInclusive<Name> {
    (key, PermitId(0))..=(key, PermitId(u64::MAX))
}
