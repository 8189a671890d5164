//! The line in which requests wait for a place: bounded, and never long. While it gets short now and then, the first come is the first
//! served, and may wait for an interval. When the first in it has waited longer than the target during a whole interval, the line stands:
//! then the newest is served first, and whoever waited twice the target is put out. That is CoDel, and adaptive LIFO.
//!
//! It holds what its owner puts in (a waker, a sender) and has no clock and no lock: the owner calls [`Line::next`] when a place is free
//! and does what it says, one request at a time, so a free place wakes one and no crowd. Every operation takes constant time, but for
//! [`Line::next`], which puts out as many as are too old, each once.

use crate::policy::Mode;
use crate::time::{Ticks, Timestamp};

use super::document::{LineSettings, QUEUE_MAX};
use super::refusal::{Cause, Controller};
use super::report::{Reason, Report};
use super::switch::Switch;

/// No slot.
const NONE: u32 = u32::MAX;

/// A place in a line. It names one request and no other, also after that has gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    slot: u32,
    generation: u32,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next<T> {
    /// It is its turn, after so long.
    Serve(T, Ticks),
    /// It must not wait any longer; there may be another one to serve.
    Refuse(T, Cause),
}

/// What became of one who came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pushed<T> {
    /// It waits.
    Waits(Place),
    /// It waits, and the one who waited longest is put out instead of it.
    Instead(Place, T),
    /// There is no room.
    Full(T),
}

#[derive(Debug)]
struct Slot<T> {
    item: Option<T>,
    came: Timestamp,
    deadline: Timestamp,
    generation: u32,
    /// Towards the oldest; for a free slot, the next free one.
    older: u32,
    newer: u32,
}

/// A line.
#[derive(Debug)]
pub struct Line<T> {
    settings: LineSettings,
    switch: Switch,
    slots: Vec<Slot<T>>,
    free: u32,
    oldest: u32,
    newest: u32,
    waiting: usize,
    size: usize,
    target: Ticks,
    /// Until when this interval lasts, and whether the first in line had waited for less than the target at any time in it.
    interval_ends: Timestamp,
    was_short: bool,
    is_standing: bool,
    refused: u64,
    would_refuse: u64,
    reason: Reason,
    changed_at: Option<Timestamp>,
}

impl<T> Line<T> {
    /// An empty line with room for so many, or as many as the settings say.
    #[must_use]
    pub fn new(settings: LineSettings, size: usize) -> Self {
        Self {
            switch: Switch::new(settings.mode),
            slots: Vec::new(),
            free: NONE,
            oldest: NONE,
            newest: NONE,
            waiting: 0,
            size: settings.size.unwrap_or(size).min(QUEUE_MAX),
            target: settings.target,
            interval_ends: Timestamp::default(),
            was_short: true,
            is_standing: false,
            refused: 0,
            would_refuse: 0,
            reason: Reason::Initial,
            changed_at: None,
            settings,
        }
    }

    /// Its mode and its kill switch. A line that is off, or in shadow, puts nobody out but for a deadline or want of room.
    #[must_use]
    pub const fn switch(&self) -> &Switch {
        &self.switch
    }

    /// Follows a limit: twice its places may wait, and the target is a tenth of what half of the requests take, at least what the settings
    /// say.
    pub fn follow(&mut self, limit: u32, half: Ticks) {
        if self.settings.size.is_none() {
            self.size = usize::try_from(limit).unwrap_or(QUEUE_MAX).saturating_mul(2).min(QUEUE_MAX);
        }
        self.target = Ticks::from_micros(half.as_micros() / 10).max(self.settings.target);
    }

    /// Puts a request in line. It is of no use after its deadline.
    pub fn push(&mut self, item: T, deadline: Timestamp, now: Timestamp) -> Pushed<T> {
        self.look(now);
        let mut out = None;
        if self.waiting >= self.size {
            // In a line that stands the oldest would be put out soon in any case, and the newest is the first to be served.
            let oldest = if self.is_standing && self.decides(now) { self.unlink(self.oldest) } else { None };
            self.refused += 1;
            match oldest {
                Some(oldest) => out = Some(oldest),
                None => return Pushed::Full(item),
            }
        }
        let slot = self.slot();
        let generation = {
            let entry = &mut self.slots[slot as usize];
            entry.item = Some(item);
            (entry.came, entry.deadline) = (now, deadline);
            (entry.older, entry.newer) = (self.newest, NONE);
            entry.generation
        };
        match self.newest {
            NONE => self.oldest = slot,
            newest => self.slots[newest as usize].newer = slot,
        }
        self.newest = slot;
        self.waiting += 1;
        let place = Place { slot, generation };
        match out {
            Some(oldest) => Pushed::Instead(place, oldest),
            None => Pushed::Waits(place),
        }
    }

    /// Who is to be served now that a place is free, or is to be put out; `None` when nobody waits. Ask until it says one or the other.
    pub fn next(&mut self, now: Timestamp) -> Option<Next<T>> {
        self.look(now);
        if let Some(refused) = self.expire(now) {
            return Some(refused);
        }
        let slot = if self.is_standing && self.decides(now) { self.newest } else { self.oldest };
        let (came, deadline) = self.slots.get(slot as usize).map(|entry| (entry.came, entry.deadline))?;
        let item = self.unlink(slot)?;
        if now >= deadline {
            self.refused += 1;
            return Some(Next::Refuse(item, Cause::Deadline));
        }
        let waited = now.since(came);
        if waited >= self.patience() && self.switch.mode(now) == Mode::Shadow {
            self.would_refuse += 1;
        }
        self.look(now);
        Some(Next::Serve(item, waited))
    }

    /// Puts out the one who waited longest, if it was too long. Ask until nobody is left, also when no place gets free: at
    /// [`Line::next_expiry`].
    pub fn expire(&mut self, now: Timestamp) -> Option<Next<T>> {
        self.look(now);
        let oldest = self.slots.get(self.oldest as usize)?;
        let (late, old) = (now >= oldest.deadline, now.since(oldest.came) >= self.patience());
        let cause = if late { Cause::Deadline } else { Cause::QueueDelay };
        if !late && (!old || !self.decides(now)) {
            return None;
        }
        self.refused += 1;
        self.unlink(self.oldest).map(|item| Next::Refuse(item, cause))
    }

    /// When the one who waited longest is to be put out.
    #[must_use]
    pub fn next_expiry(&self) -> Option<Timestamp> {
        let oldest = self.slots.get(self.oldest as usize)?;
        Some((oldest.came + self.patience()).min(oldest.deadline))
    }

    /// Takes one out who does not want to wait any longer; `None` when it is not there any more.
    pub fn cancel(&mut self, place: Place, now: Timestamp) -> Option<T> {
        let entry = self.slots.get(place.slot as usize)?;
        if entry.generation != place.generation {
            return None;
        }
        let item = self.unlink(place.slot);
        self.look(now);
        item
    }

    /// How many wait.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.waiting
    }

    /// Whether nobody waits.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// Whether it stands: the newest are served first.
    #[must_use]
    pub const fn is_standing(&self) -> bool {
        self.is_standing
    }

    /// The state of it. Its baseline is the target, and what is recent the wait of the first in line.
    #[must_use]
    pub fn report(&self, now: Timestamp) -> Report {
        let waited = self.slots.get(self.oldest as usize).map(|oldest| now.since(oldest.came));
        Report {
            killed_until: self.switch.killed_until(now),
            limit: Some(self.size as u64),
            in_flight: Some(u32::try_from(self.waiting).unwrap_or(u32::MAX)),
            baseline: Some(self.target),
            recent: Some(waited.unwrap_or(Ticks::ZERO)),
            queue: Some(self.waiting as u64),
            refused: self.refused,
            would_refuse: self.would_refuse,
            reason: self.reason,
            changed_at: self.changed_at,
            ..Report::new(Controller::Queue, self.switch.mode(now))
        }
    }

    /// How long anybody may wait.
    fn patience(&self) -> Ticks {
        if self.is_standing { self.target + self.target } else { self.settings.interval.max(self.target) }
    }

    fn decides(&self, now: Timestamp) -> bool {
        self.switch.mode(now) == Mode::Enforce
    }

    /// Notes how long the first in line has waited, and at the end of an interval whether the line stands.
    fn look(&mut self, now: Timestamp) {
        let waited =
            self.slots.get(self.oldest as usize).map_or(Ticks::ZERO, |oldest| now.since(oldest.came));
        if now >= self.interval_ends {
            let standing = !self.was_short && waited > self.target;
            if standing != self.is_standing {
                self.is_standing = standing;
                self.reason = if standing { Reason::Standing } else { Reason::Drained };
                self.changed_at = Some(now);
            }
            self.interval_ends = now + self.settings.interval;
            self.was_short = false;
        }
        self.was_short |= waited <= self.target;
    }

    fn slot(&mut self) -> u32 {
        if self.free == NONE {
            let slot = u32::try_from(self.slots.len()).unwrap_or(NONE);
            let (came, deadline) = (Timestamp::default(), Timestamp::default());
            self.slots.push(Slot { item: None, came, deadline, generation: 0, older: NONE, newer: NONE });
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
        let (older, newer) = (entry.older, entry.newer);
        (entry.older, entry.newer) = (self.free, NONE);
        self.free = slot;
        match older {
            NONE => self.oldest = newer,
            older => self.slots[older as usize].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.slots[newer as usize].older = older,
        }
        self.waiting -= 1;
        Some(item)
    }
}
