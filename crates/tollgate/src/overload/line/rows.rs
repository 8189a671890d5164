//! Where those who wait are kept: slots that are used again, and through them a row for each priority, from the oldest to the newest.

use crate::time::Timestamp;

use super::super::priority::Priority;

/// No slot.
const NONE: u32 = u32::MAX;
const CLASSES: usize = Priority::ALL.len();

/// A place in a line. It names one request and no other, also after that has gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    slot: u32,
    generation: u32,
}

/// Since when one waits, and until when it is of use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stay {
    pub(super) came: Timestamp,
    pub(super) deadline: Timestamp,
    /// Its number among all who ever came: instants may be the same.
    turn: u64,
}

#[derive(Debug)]
struct Slot<T> {
    item: Option<T>,
    stay: Stay,
    row: Priority,
    generation: u32,
    /// Towards the oldest of its row; for a free slot, the next free one.
    older: u32,
    newer: u32,
}

#[derive(Clone, Copy, Debug)]
struct Row {
    oldest: u32,
    newest: u32,
}

/// Which end of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Oldest,
    Newest,
}

/// All rows.
#[derive(Debug)]
pub(super) struct Rows<T> {
    slots: Vec<Slot<T>>,
    free: u32,
    rows: [Row; CLASSES],
    waiting: usize,
    turns: u64,
}

impl<T> Rows<T> {
    pub(super) const fn new() -> Self {
        let empty = Row { oldest: NONE, newest: NONE };
        Self { slots: Vec::new(), free: NONE, rows: [empty; CLASSES], waiting: 0, turns: 0 }
    }

    pub(super) const fn len(&self) -> usize {
        self.waiting
    }

    /// Puts one at the newest end of a row.
    pub(super) fn push(&mut self, item: T, row: Priority, came: Timestamp, deadline: Timestamp) -> Place {
        self.turns += 1;
        let stay = Stay { came, deadline, turn: self.turns };
        let older = self.rows[row as usize].newest;
        let slot = self.slot(row);
        let entry = &mut self.slots[slot as usize];
        entry.item = Some(item);
        (entry.stay, entry.row) = (stay, row);
        (entry.older, entry.newer) = (older, NONE);
        let place = Place { slot, generation: entry.generation };
        match older {
            NONE => self.rows[row as usize].oldest = slot,
            older => self.slots[older as usize].newer = slot,
        }
        self.rows[row as usize].newest = slot;
        self.waiting += 1;
        place
    }

    /// How one at the end of a row waits; none if the row is empty.
    pub(super) fn stay(&self, row: Priority, end: End) -> Option<Stay> {
        self.slots.get(self.at(row, end) as usize).map(|entry| entry.stay)
    }

    /// The row of one who is named, and how it waits; none when it is not there any more.
    pub(super) fn stay_at(&self, place: Place) -> Option<(Priority, Stay)> {
        let entry = self.slots.get(place.slot as usize)?;
        (entry.generation == place.generation && entry.item.is_some()).then_some((entry.row, entry.stay))
    }

    /// The row that matters least, or most, of those in which anybody waits.
    pub(super) fn least(&self) -> Option<Priority> {
        Priority::ALL.into_iter().find(|&row| !self.is_empty(row))
    }

    pub(super) fn most(&self) -> Option<Priority> {
        Priority::ALL.into_iter().rev().find(|&row| !self.is_empty(row))
    }

    /// The row of the one who came first of all.
    pub(super) fn first(&self) -> Option<Priority> {
        let turn = |row: &Priority| self.stay(*row, End::Oldest).map_or(u64::MAX, |stay| stay.turn);
        Priority::ALL.into_iter().filter(|&row| !self.is_empty(row)).min_by_key(turn)
    }

    /// Takes one out at the end of a row.
    pub(super) fn take(&mut self, row: Priority, end: End) -> Option<T> {
        self.unlink(self.at(row, end))
    }

    /// Takes out one who is named; `None` when it is not there any more.
    pub(super) fn remove(&mut self, place: Place) -> Option<T> {
        let entry = self.slots.get(place.slot as usize)?;
        if entry.generation != place.generation {
            return None;
        }
        self.unlink(place.slot)
    }

    const fn is_empty(&self, row: Priority) -> bool {
        self.rows[row as usize].oldest == NONE
    }

    const fn at(&self, row: Priority, end: End) -> u32 {
        match end {
            End::Oldest => self.rows[row as usize].oldest,
            End::Newest => self.rows[row as usize].newest,
        }
    }

    fn slot(&mut self, row: Priority) -> u32 {
        if self.free == NONE {
            let slot = u32::try_from(self.slots.len()).unwrap_or(NONE);
            let never = Timestamp::default();
            let stay = Stay { came: never, deadline: never, turn: 0 };
            self.slots.push(Slot { item: None, stay, row, generation: 0, older: NONE, newer: NONE });
            return slot;
        }
        let slot = self.free;
        self.free = self.slots[slot as usize].older;
        slot
    }

    fn unlink(&mut self, slot: u32) -> Option<T> {
        let entry = self.slots.get_mut(slot as usize)?;
        let item = entry.item.take()?;
        // Whoever still has the place's name must not find the next one in it.
        entry.generation = entry.generation.wrapping_add(1);
        let (older, newer, row) = (entry.older, entry.newer, entry.row as usize);
        (entry.older, entry.newer) = (self.free, NONE);
        self.free = slot;
        match older {
            NONE => self.rows[row].oldest = newer,
            older => self.slots[older as usize].newer = newer,
        }
        match newer {
            NONE => self.rows[row].newest = older,
            newer => self.slots[newer as usize].older = older,
        }
        self.waiting -= 1;
        Some(item)
    }
}
