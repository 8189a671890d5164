//! Exports the counters of a memory store in use, and imports them into a new one, for snapshots. The engine
//! defines the format.

use std::io;

use super::decide::Origin;
use super::holds::ActiveHold;
use super::large::LargeEntry;
use super::table::{Full, Slot};
use super::wall::{KeptSettings, Setting};
use super::{MemoryStore, PartitionId};
use crate::algorithm::reservoir::FRACTION_BITS;
use crate::key::Fingerprint;
use crate::store::{Hold, Store};
use crate::time::{Ticks, Timestamp, WallOffset};

/// Some counters of a store.
#[derive(Debug)]
pub(crate) enum Piece<'a> {
    /// States of one word.
    Words(&'a [Slot<1>]),
    /// States of two words.
    Pairs(&'a [Slot<2>]),
    /// A large state.
    Large(Fingerprint, &'a LargeEntry),
}

impl MemoryStore {
    /// Exports every counter that is not idle at `now`, each as of some instant from now on, while decisions
    /// continue.
    pub(crate) fn export(
        &self,
        now: Timestamp,
        mut some: impl FnMut(PartitionId, Piece<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        let now = self.origin.clamp(now);
        for (id, partition) in [(PartitionId::Main, &self.main), (PartitionId::Overflow, &self.overflow)] {
            partition.words.walk(self.origin.word(now), |slots| some(id, Piece::Words(slots)))?;
            partition.pairs.walk(now.unix_micros(), |slots| some(id, Piece::Pairs(slots)))?;
            partition.large.export(now, |key, entry| some(id, Piece::Large(key, entry)))?;
        }
        Ok(())
    }

    /// The instant from which its words are counted.
    pub(crate) const fn origin(&self) -> Origin {
        self.origin
    }

    /// The settings of the wall clock, for a snapshot.
    pub(crate) fn wall_settings(&self) -> KeptSettings {
        self.walls.kept()
    }

    /// Whether the wall clock was not set since these settings were kept.
    pub(crate) fn has_wall_settings(&self, kept: &KeptSettings) -> bool {
        self.walls.are_still(kept)
    }

    /// Starts with the settings of another store.
    pub(crate) fn resume_wall(&mut self, settings: Vec<Setting>) {
        self.walls.resume(settings);
    }

    /// How far the wall clock is ahead of the clock of decisions.
    pub(crate) fn wall(&self) -> WallOffset {
        self.walls.offset()
    }

    /// The active holds.
    pub(crate) fn active_holds(&self, now: Timestamp) -> Vec<ActiveHold> {
        // All tables have the same holds; these are in ticks.
        self.main.pairs.holds().active(self.origin.clamp(now).unix_micros())
    }

    /// Restores a hold of another store.
    pub(crate) fn hold_again(&self, hold: ActiveHold) {
        let [since, until] = [hold.since, hold.until].map(Timestamp::from_unix_micros);
        self.hold(&Hold { numbers: vec![hold.number], since, until });
    }

    /// Imports a one-word state of a store with another origin. Returns false if it is idle.
    pub(crate) fn put_word(
        &self,
        id: PartitionId,
        mut slot: Slot<1>,
        from: Origin,
        now: Timestamp,
    ) -> Result<bool, Full> {
        slot.entry.state = [self.origin.rebased(slot.entry.state[0], from)];
        let horizon = self.origin.word(self.origin.clamp(now));
        self.partition(id).words.put_back(slot, horizon)
    }

    /// Imports a two-word state. Returns false if it is idle.
    pub(crate) fn put_pair(&self, id: PartitionId, slot: Slot<2>, now: Timestamp) -> Result<bool, Full> {
        self.partition(id).pairs.put_back(slot, self.origin.clamp(now).unix_micros())
    }

    /// Imports a large state. Returns false if it is idle.
    pub(crate) fn put_large(
        &self,
        id: PartitionId,
        key: Fingerprint,
        entry: LargeEntry,
        now: Timestamp,
    ) -> Result<bool, Full> {
        self.partition(id).large.put_back(key, entry, self.origin.clamp(now))
    }
}

impl Origin {
    /// Converts a word from another origin to this one. An instant before this origin was idle long ago and
    /// is clamped to it, which is to the caller's disadvantage. An instant too far ahead, as after a clock
    /// that stepped back by years, is clamped to the last one, which is beyond the bounds of any quota.
    fn rebased(self, word: u64, from: Origin) -> u64 {
        const TICKS_MAX: u64 = u64::MAX >> FRACTION_BITS;
        let at = from.0 + Ticks::from_micros(word >> FRACTION_BITS);
        let ticks = at.since(self.0).as_micros().min(TICKS_MAX);
        (ticks << FRACTION_BITS) | (word & ((1 << FRACTION_BITS) - 1))
    }
}
