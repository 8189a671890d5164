//! UnreportedPermits in flight that this process gives without the store, from before they are given until the store has taken note of them. A
//! place has a name and counts once, so it is reported again and again until the store has answered.
//!
//! What the store gives meanwhile is judged beside them: an answer counts every place of this process that the store may not have
//! known of when it gave another.

use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::counter::Counter;
use crate::algorithm::concurrency::PermitId;
use crate::engine::live::Live;
use crate::key::Fingerprint;
use crate::store::Charge;
use crate::time::{Ticks, Timestamp};

/// Most places that are remembered. Without room for another none is given.
const PERMITS_MAX: usize = 10_000;
/// How long a place is remembered after the store has taken note of it: longer than any question is under way, whose deadline is far
/// below a second.
const REPORTED_FOR: Ticks = Ticks::from_secs(10);

/// A place, by its key and its name.
pub(super) type Name = (Fingerprint, PermitId);

/// A place that the store has yet to record.
pub(super) struct Owed {
    pub(super) name: Name,
    pub(super) counter: Counter,
    pub(super) units: u64,
}

/// The places of this process that the store does not know of, or did not a moment ago.
#[derive(Default)]
pub(super) struct UnreportedPermits {
    /// How many of them there are, and how many the store has yet to record: to be asked without the lock.
    held: AtomicUsize,
    owed: AtomicUsize,
    /// Counts the places that the store has recorded. A question remembers the number that it was asked at.
    reported: AtomicU64,
    book: Mutex<Book>,
}

#[derive(Default)]
struct Book {
    places: BTreeMap<Name, Entry>,
    /// Those that the store has recorded, in that order.
    reported: VecDeque<(Timestamp, Name)>,
    owed: usize,
}

#[derive(Debug)]
struct Entry {
    state: State,
    units: u64,
    since: Timestamp,
}

#[derive(Debug)]
enum State {
    /// The share is being asked for it.
    Announced(Counter),
    /// It was given, and the store was never asked to take note of it.
    Given(Counter),
    /// The store was asked, and may have taken note.
    Asked(Counter),
    /// The store has taken note, as the how manieth place.
    Reported(u64),
}

impl State {
    /// What it is reported with, if it has to be.
    const fn owed(&self) -> Option<&Counter> {
        match self {
            State::Given(counter) | State::Asked(counter) => Some(counter),
            State::Announced(_) | State::Reported(_) => None,
        }
    }
}

impl Book {
    fn remove(&mut self, name: &Name) -> Option<Entry> {
        let place = self.places.remove(name)?;
        self.owed -= usize::from(place.state.owed().is_some());
        Some(place)
    }

    fn insert(&mut self, name: Name, place: Entry) {
        self.remove(&name);
        self.owed += usize::from(place.state.owed().is_some());
        self.places.insert(name, place);
    }

    /// Forgets those that every question under way knows to be in the store's answer.
    fn sweep(&mut self, now: Timestamp) {
        while let Some(&(at, name)) = self.reported.front()
            && now.since(at) >= REPORTED_FOR
        {
            self.reported.pop_front();
            if self.places.get(&name).is_some_and(|place| matches!(place.state, State::Reported(_))) {
                self.remove(&name);
            }
        }
    }
}

impl UnreportedPermits {
    /// Does something to the book, and counts what is in it then.
    fn with<T>(&self, act: impl FnOnce(&mut Book) -> T) -> T {
        // Each statement leaves the book in order.
        let mut book: MutexGuard<'_, Book> = self.book.lock().unwrap_or_else(PoisonError::into_inner);
        let done = act(&mut book);
        // Relaxed: whoever must see a place has announced it before it took the lock of a share, which orders the two.
        self.held.store(book.places.len(), Ordering::Relaxed);
        self.owed.store(book.owed, Ordering::Relaxed);
        done
    }

    fn is_empty(&self) -> bool {
        self.held.load(Ordering::Relaxed) == 0
    }

    /// How many places the store has yet to record.
    #[inline]
    pub(super) fn owed(&self) -> usize {
        self.owed.load(Ordering::Relaxed)
    }

    /// How many places the store has recorded so far: these it knows when it is asked next.
    pub(super) fn reported_so_far(&self) -> u64 {
        // Acquire: the answers that the number stands for lie before it.
        self.reported.load(Ordering::Acquire)
    }

    /// Takes down a place that the share is about to be asked for, so that an answer of the store that comes meanwhile finds it.
    /// Returns whether there was room; without it the place must not be given.
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
                let state = State::Announced(counter());
                book.insert((charge.key, charge.permit), Entry { state, units: charge.cost, since: now });
            }
            has_room
        })
    }

    /// The share has given it.
    pub(super) fn give(&self, charge: &Charge<'_>) {
        let name = (charge.key, charge.permit);
        self.with(|book| {
            if let Some(Entry { state: State::Announced(counter), units, since }) = book.remove(&name) {
                book.insert(name, Entry { state: State::Given(counter), units, since });
            }
        });
    }

    /// Forgets a place that was given back, or not given after all; returns whether the store cannot know of it.
    pub(super) fn take_back(&self, charge: &Charge<'_>) -> bool {
        if self.is_empty() {
            return false;
        }
        let place = self.with(|book| book.remove(&(charge.key, charge.permit)));
        place.is_some_and(|place| matches!(place.state, State::Announced(_) | State::Given(_)))
    }

    /// Units of the key's places that the store may not have known of when it answered a question that was asked after it had recorded
    /// so many.
    pub(super) fn unknown(&self, charge: &Charge<'_>, reported_before: u64, now: Timestamp) -> u64 {
        if self.is_empty() {
            return 0;
        }
        self.with(|book| {
            book.sweep(now);
            let others =
                book.places.range(all_of(charge.key)).filter(|((_, name), _)| *name != charge.permit);
            let is_unknown =
                |place: &&Entry| !matches!(place.state, State::Reported(number) if number <= reported_before);
            others.map(|(_, place)| place).filter(is_unknown).map(|place| place.units).sum()
        })
    }

    /// Whether the store has yet to record places of one of these keys.
    pub(super) fn owes(&self, charges: &[Charge<'_>]) -> bool {
        let is_owed = |book: &mut Book| {
            let mut places = charges.iter().flat_map(|charge| book.places.range(all_of(charge.key)));
            places.any(|(_, place)| place.state.owed().is_some())
        };
        self.owed() > 0 && self.with(is_owed)
    }

    /// Some place that the store has yet to record.
    pub(super) fn any(&self, live: &Live) -> Option<(Counter, PermitId)> {
        self.with(|book| {
            let owed = |(name, place): (&Name, &Entry)| Some((place.state.owed()?.clone(), name.1));
            let mut owed = book.places.iter().filter_map(owed);
            owed.find(|(counter, permit)| counter.charge(live, *permit, 0).is_some())
        })
    }

    /// The places of these keys that the store has yet to record, or, of all keys, as many as `most`. They stay here until it
    /// has answered. Those that have expired, or whose limit is gone, are forgotten.
    pub(super) fn due(
        &self,
        live: &Live,
        of: Option<&[Charge<'_>]>,
        most: usize,
        now: Timestamp,
    ) -> Vec<Owed> {
        if self.owed() == 0 {
            return Vec::new();
        }
        self.with(|book| {
            let is_owed = |(name, place): (&Name, &Entry)| place.state.owed().map(|_| *name);
            let names: Vec<Name> = match of {
                Some(charges) => {
                    let each = charges.iter().flat_map(|charge| book.places.range(all_of(charge.key)));
                    each.filter_map(is_owed).collect()
                }
                None => book.places.iter().filter_map(is_owed).take(most).collect(),
            };
            let mut due = Vec::new();
            for name in names {
                let Some(Entry { state, units, since }) = book.remove(&name) else { continue };
                let Some(counter) = state.owed().cloned() else { continue };
                let charge = counter.charge(live, name.1, 0);
                if charge.is_some_and(|charge| now.since(since) < charge.quota.memory()) {
                    book.insert(name, Entry { state: State::Asked(counter.clone()), units, since });
                    due.push(Owed { name, counter, units });
                }
            }
            due
        })
    }

    /// The store has taken note of a place.
    pub(super) fn reported(&self, name: &Name, now: Timestamp) {
        self.with(|book| {
            if book.places.get(name).is_none_or(|place| place.state.owed().is_none()) {
                return; // It was given back meanwhile, or another request has reported it.
            }
            // Under the lock, so that number and state go together; Release, for whoever reads the number and then asks the store.
            let number = self.reported.fetch_add(1, Ordering::Release) + 1;
            if let Some(place) = book.remove(name) {
                book.insert(*name, Entry { state: State::Reported(number), ..place });
            }
            book.reported.push_back((now, *name));
        });
    }

    /// Lets a place live anew that its holder still has.
    pub(super) fn renew(&self, charge: &Charge<'_>, now: Timestamp) {
        if !self.is_empty() {
            self.with(|book| {
                if let Some(place) = book.places.get_mut(&(charge.key, charge.permit)) {
                    place.since = now;
                }
            });
        }
    }

    /// Forgets the places of a key.
    pub(super) fn forget(&self, key: Fingerprint) {
        if !self.is_empty() {
            self.with(|book| {
                let names: Vec<Name> = book.places.range(all_of(key)).map(|(name, _)| *name).collect();
                names.iter().for_each(|name| drop(book.remove(name)));
            });
        }
    }

    /// Forgets all; returns how many the store has not recorded.
    pub(super) fn clear(&self) -> usize {
        self.with(|book| std::mem::take(book).owed)
    }
}

/// Every place of a key.
const fn all_of(key: Fingerprint) -> RangeInclusive<Name> {
    (key, PermitId(0))..=(key, PermitId(u64::MAX))
}
