//! Reading a memory store out while it is in use, and filling a new one from that: what a snapshot needs of it. How it is written
//! down is left to the engine.

use std::io;

use super::decide::Origin;
use super::holds::Lasting;
use super::shelf::Shelved;
use super::table::{Full, Slot};
use super::{Hall, MemoryStore};
use crate::algorithm::reservoir::FRACTION_BITS;
use crate::key::Fingerprint;
use crate::store::{Hold, Store};
use crate::time::{Ticks, Timestamp};

/// Some of a store's counters.
#[derive(Debug)]
pub(crate) enum Piece<'a> {
    /// States of one word.
    Words(&'a [Slot<1>]),
    /// States of two.
    Pairs(&'a [Slot<2>]),
    /// A large state.
    Large(Fingerprint, &'a Shelved),
}

/// Which hall a counter is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// That of the keys.
    Main,
    /// That of the counters that new keys share.
    Overflow,
}

impl MemoryStore {
    /// Hands out every counter that matters at `now`, each as it is at some instant from now on, while decisions go on.
    pub(crate) fn walk(
        &self,
        now: Timestamp,
        mut some: impl FnMut(Place, Piece<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        let now = self.origin.clamp(now);
        for (place, hall) in [(Place::Main, &self.main), (Place::Overflow, &self.overflow)] {
            hall.words.walk(self.origin.word(now), |slots| some(place, Piece::Words(slots)))?;
            hall.pairs.walk(now.unix_micros(), |slots| some(place, Piece::Pairs(slots)))?;
            hall.shelf.walk(now, |key, shelved| some(place, Piece::Large(key, shelved)))?;
        }
        Ok(())
    }

    /// The instant from which its words are counted.
    pub(crate) const fn origin(&self) -> Origin {
        self.origin
    }

    /// The holds that are in force.
    pub(crate) fn lasting(&self, now: Timestamp) -> Vec<Lasting> {
        // All parts of both halls are told of the same holds; this one counts in plain ticks.
        self.main.pairs.holds().lasting(self.origin.clamp(now).unix_micros())
    }

    /// Holds counters as another store did.
    pub(crate) fn hold_again(&self, lasting: Lasting) {
        let [since, until] = [lasting.since, lasting.until].map(Timestamp::from_unix_micros);
        self.hold(&Hold { numbers: vec![lasting.number], since, until });
    }

    fn hall_at(&self, place: Place) -> &Hall {
        match place {
            Place::Main => &self.main,
            Place::Overflow => &self.overflow,
        }
    }

    /// Keeps a state of one word that another store counted from its own origin. Tells whether it still matters.
    pub(crate) fn put_word(
        &self,
        place: Place,
        mut slot: Slot<1>,
        from: Origin,
        now: Timestamp,
    ) -> Result<bool, Full> {
        slot.entry.state = [self.origin.rebased(slot.entry.state[0], from)];
        let horizon = self.origin.word(self.origin.clamp(now));
        self.hall_at(place).words.put_back(slot, horizon)
    }

    /// The same for two words.
    pub(crate) fn put_pair(&self, place: Place, slot: Slot<2>, now: Timestamp) -> Result<bool, Full> {
        self.hall_at(place).pairs.put_back(slot, self.origin.clamp(now).unix_micros())
    }

    /// The same for a large state.
    pub(crate) fn put_large(
        &self,
        place: Place,
        key: Fingerprint,
        shelved: Shelved,
        now: Timestamp,
    ) -> Result<bool, Full> {
        self.hall_at(place).shelf.put_back(key, shelved, self.origin.clamp(now))
    }
}

impl Origin {
    /// A word counted from another origin, counted from this one. What lies before this one was idle long ago, and is drawn to
    /// it, which is against the caller; what lies too far ahead to be told, as after a clock that stepped back by years, is
    /// drawn back as far as can be told, which is further than any quota believes.
    fn rebased(self, word: u64, from: Origin) -> u64 {
        const TICKS_MAX: u64 = u64::MAX >> FRACTION_BITS;
        let at = from.0 + Ticks::from_micros(word >> FRACTION_BITS);
        let ticks = at.since(self.0).as_micros().min(TICKS_MAX);
        (ticks << FRACTION_BITS) | (word & ((1 << FRACTION_BITS) - 1))
    }
}
