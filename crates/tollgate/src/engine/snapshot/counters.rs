//! Counters as bytes and back, as they are in the tables and among the large states.

use std::io::{self, Write};

use super::fields::{FrameFields, Unread};
use super::frame::{Block, Frames};
use crate::algorithm::concurrency::{self, PermitId};
use crate::algorithm::sliding_log;
use crate::algorithm::sliding_window::{self, PRECISION_MAX};
use crate::key::{Fingerprint, NEVER_ZERO};
use crate::memory::{
    Full, KeptSettings, Large, LargeEntry, MemoryStore, PartitionId, Piece, Slot, SlotEntry,
};
use crate::rate::EXACT_MAX;
use crate::time::Timestamp;

/// How many counters there were.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counted {
    pub(super) keys: u64,
    pub(super) overflow_keys: u64,
    pub(super) idle: u64,
    pub(super) dropped: u64,
    /// All of them.
    pub(super) read: u64,
}

impl Counted {
    fn add(&mut self, partition: PartitionId, counters: usize) {
        *self.of(partition) += counters as u64;
    }

    const fn of(&mut self, partition: PartitionId) -> &mut u64 {
        match partition {
            PartitionId::Main => &mut self.keys,
            PartitionId::Overflow => &mut self.overflow_keys,
        }
    }

    /// Counts one that was read.
    pub(super) fn count_restored(&mut self, partition: PartitionId, put: Result<bool, Full>) {
        self.read += 1;
        *match put {
            Ok(true) => self.of(partition),
            Ok(false) => &mut self.idle,
            Err(Full) => &mut self.dropped,
        } += 1;
    }
}

/// Writes every counter that matters.
pub(super) fn write<W: Write>(
    frames: &mut Frames<'_, W>,
    store: &MemoryStore,
    wall: &KeptSettings,
    now: Timestamp,
) -> io::Result<Counted> {
    let mut counted = Counted::default();
    store.export(now, |partition, piece| match piece {
        Piece::Words(slots) => {
            counted.add(partition, slots.len());
            frames.write(Block::Words, |fields| write_slots(fields, partition, slots))
        }
        Piece::Pairs(slots) => {
            counted.add(partition, slots.len());
            let kept = |slot: &Slot<2>| {
                let entry = SlotEntry { state: wall.words(slot.entry.state), number: slot.entry.number };
                Slot { key: slot.key, entry }
            };
            let slots: Vec<_> = slots.iter().map(kept).collect();
            frames.write(Block::Pairs, |fields| write_slots(fields, partition, &slots))
        }
        Piece::Large(key, entry) => {
            counted.add(partition, 1);
            frames.write(Block::Large, |fields| write_large(fields, partition, key, entry))
        }
    })?;
    Ok(counted)
}

fn write_partition(fields: &mut FrameFields, partition: PartitionId) {
    fields.u8(u8::from(partition == PartitionId::Overflow));
}

pub(super) fn read_partition(fields: &mut Unread<'_>) -> Result<PartitionId, String> {
    match fields.u8()? {
        0 => Ok(PartitionId::Main),
        1 => Ok(PartitionId::Overflow),
        other => Err(format!("unknown section {other}")),
    }
}

fn write_slots<const WORDS: usize>(fields: &mut FrameFields, partition: PartitionId, slots: &[Slot<WORDS>]) {
    write_partition(fields, partition);
    for Slot { key, entry } in slots {
        write_key(fields, *key);
        fields.u32(entry.number);
        entry.state.iter().for_each(|&word| fields.u64(word));
    }
}

pub(super) fn read_slot<const WORDS: usize>(fields: &mut Unread<'_>) -> Result<Slot<WORDS>, String> {
    let (key, number) = (read_key(fields)?, fields.number()?);
    let mut state = [0; WORDS];
    for (partition, word) in state.iter_mut().enumerate() {
        // A single word uses all its bits. Of two words, the first is an instant. The second is an exact count, beside
        // the number of a setting of the wall clock.
        *word = if WORDS == 2 && partition == 0 { fields.u64_to(EXACT_MAX)? } else { fields.u64()? };
    }
    Ok(Slot { key, entry: SlotEntry { state, number } })
}

fn write_key(fields: &mut FrameFields, key: Fingerprint) {
    fields.u64(key.tag);
    fields.u64(key.rest);
}

fn read_key(fields: &mut Unread<'_>) -> Result<Fingerprint, String> {
    let key = Fingerprint { tag: fields.u64()?, rest: fields.u64()? };
    if key.tag & NEVER_ZERO == 0 { Err("a key is no key".to_owned()) } else { Ok(key) }
}

fn write_large(fields: &mut FrameFields, partition: PartitionId, key: Fingerprint, entry: &LargeEntry) {
    write_partition(fields, partition);
    write_key(fields, key);
    fields.u32(entry.number);
    fields.instant(entry.idle_at);
    fields.u64(u64::from(entry.bytes));
    match &entry.state {
        Large::Window(state) => {
            fields.u8(0);
            fields.u64(state.newest());
            fields.list(state.counts(), |fields, &units| fields.u64(units));
        }
        Large::Log(state) => {
            fields.u8(1);
            let units: Vec<_> = state.units().collect();
            fields.list(units, |fields, (at, units)| {
                fields.instant(at);
                fields.u64(units);
            });
        }
        Large::Permits(state) => {
            fields.u8(2);
            let permits: Vec<_> = state.permits().collect();
            fields.list(permits, |fields, (PermitId(id), units, expires_at)| {
                fields.u64(id);
                fields.u64(units);
                fields.instant(expires_at);
            });
        }
    }
}

pub(super) fn read_large(fields: &mut Unread<'_>) -> Result<(Fingerprint, LargeEntry), String> {
    let (key, number, idle_at) = (read_key(fields)?, fields.number()?, fields.instant()?);
    let bytes = u32::try_from(fields.u64_to(u64::from(u32::MAX))?).unwrap_or(u32::MAX);
    let state = match fields.u8()? {
        0 => Large::Window(read_window(fields)?),
        1 => {
            let length = fields.length()?;
            let units = (0..length).map(|_| Ok((fields.instant()?, fields.u64()?)));
            let units: Vec<_> = units.collect::<Result<_, String>>()?;
            Large::Log(sliding_log::State::from_units(units).ok_or("a log is not in order")?)
        }
        2 => {
            let length = fields.length()?;
            let permits =
                (0..length).map(|_| Ok((PermitId(fields.u64()?), fields.u64()?, fields.instant()?)));
            let permits: Vec<_> = permits.collect::<Result<_, String>>()?;
            Large::Permits(
                concurrency::State::from_permits(permits).ok_or("permits are not what they can be")?,
            )
        }
        other => return Err(format!("there is no state {other}")),
    };
    Ok((key, LargeEntry { number, idle_at, bytes, state }))
}

fn read_window(fields: &mut Unread<'_>) -> Result<sliding_window::State, String> {
    let newest = fields.u64_to(Timestamp::MAX.unix_micros())?;
    let length = fields.length()?;
    if length > PRECISION_MAX as usize + 1 {
        return Err(format!("a window has {length} parts"));
    }
    let counts: Vec<u64> = (0..length).map(|_| fields.u64_to(EXACT_MAX)).collect::<Result<_, String>>()?;
    Ok(sliding_window::State::new(newest, &counts))
}
