//! Storage of the waiters: reusable slots, linked into one list per class from the oldest to the newest.

use tollgate::time::Timestamp;

use super::super::priority::Priority;

/// No slot.
const NONE: u32 = u32::MAX;
const CLASSES: usize = Priority::ALL.len();

/// Identifies a waiter. It never identifies another one, even after its slot is reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WaiterId {
    slot: u32,
    generation: u32,
}

/// When a waiter arrived, and when it becomes useless.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitTimes {
    pub(super) arrived_at: Timestamp,
    pub(super) deadline: Timestamp,
    /// The order of arrival, since instants may be equal.
    arrival: u64,
}

#[derive(Debug)]
struct WaiterSlot<T> {
    item: Option<T>,
    times: WaitTimes,
    class: Priority,
    generation: u32,
    /// The next older waiter of the class; for a free slot, the next free one.
    older: u32,
    newer: u32,
}

#[derive(Clone, Copy, Debug)]
struct ClassQueue {
    oldest: u32,
    newest: u32,
}

/// An end of a class's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueueEnd {
    Oldest,
    Newest,
}

/// The waiters of all classes.
#[derive(Debug)]
pub(super) struct ClassQueues<T> {
    slots: Vec<WaiterSlot<T>>,
    free: u32,
    classes: [ClassQueue; CLASSES],
    waiting: usize,
    arrivals: u64,
}

impl<T> ClassQueues<T> {
    pub(super) const fn new() -> Self {
        let empty = ClassQueue { oldest: NONE, newest: NONE };
        Self { slots: Vec::new(), free: NONE, classes: [empty; CLASSES], waiting: 0, arrivals: 0 }
    }

    pub(super) const fn len(&self) -> usize {
        self.waiting
    }

    /// Appends a waiter at the newest end of a class.
    pub(super) fn push(
        &mut self,
        item: T,
        class: Priority,
        arrived_at: Timestamp,
        deadline: Timestamp,
    ) -> WaiterId {
        self.arrivals += 1;
        let times = WaitTimes { arrived_at, deadline, arrival: self.arrivals };
        let older = self.classes[class as usize].newest;
        let slot = self.slot(class);
        let entry = &mut self.slots[slot as usize];
        entry.item = Some(item);
        (entry.times, entry.class) = (times, class);
        (entry.older, entry.newer) = (older, NONE);
        let id = WaiterId { slot, generation: entry.generation };
        match older {
            NONE => self.classes[class as usize].oldest = slot,
            older => self.slots[older as usize].newer = slot,
        }
        self.classes[class as usize].newest = slot;
        self.waiting += 1;
        id
    }

    /// The times of the waiter at an end of a class; `None` if the class is empty.
    pub(super) fn times(&self, class: Priority, end: QueueEnd) -> Option<WaitTimes> {
        self.slots.get(self.at(class, end) as usize).map(|entry| entry.times)
    }

    /// The class and times of a waiter; `None` if it is no longer queued.
    pub(super) fn times_of(&self, id: WaiterId) -> Option<(Priority, WaitTimes)> {
        let entry = self.slots.get(id.slot as usize)?;
        (entry.generation == id.generation && entry.item.is_some()).then_some((entry.class, entry.times))
    }

    /// The lowest and the highest class with waiters.
    pub(super) fn lowest(&self) -> Option<Priority> {
        Priority::ALL.into_iter().find(|&class| !self.is_empty(class))
    }

    pub(super) fn highest(&self) -> Option<Priority> {
        Priority::ALL.into_iter().rev().find(|&class| !self.is_empty(class))
    }

    /// The class of the waiter that arrived first.
    pub(super) fn first(&self) -> Option<Priority> {
        let arrival =
            |class: &Priority| self.times(*class, QueueEnd::Oldest).map_or(u64::MAX, |times| times.arrival);
        Priority::ALL.into_iter().filter(|&class| !self.is_empty(class)).min_by_key(arrival)
    }

    /// Removes the waiter at an end of a class.
    pub(super) fn take(&mut self, class: Priority, end: QueueEnd) -> Option<T> {
        self.unlink(self.at(class, end))
    }

    /// Removes a waiter; `None` if it is no longer queued.
    pub(super) fn remove(&mut self, id: WaiterId) -> Option<T> {
        let entry = self.slots.get(id.slot as usize)?;
        if entry.generation != id.generation {
            return None;
        }
        self.unlink(id.slot)
    }

    const fn is_empty(&self, class: Priority) -> bool {
        self.classes[class as usize].oldest == NONE
    }

    const fn at(&self, class: Priority, end: QueueEnd) -> u32 {
        match end {
            QueueEnd::Oldest => self.classes[class as usize].oldest,
            QueueEnd::Newest => self.classes[class as usize].newest,
        }
    }

    fn slot(&mut self, class: Priority) -> u32 {
        if self.free == NONE {
            let slot = u32::try_from(self.slots.len()).unwrap_or(NONE);
            let never = Timestamp::default();
            let times = WaitTimes { arrived_at: never, deadline: never, arrival: 0 };
            self.slots.push(WaiterSlot { item: None, times, class, generation: 0, older: NONE, newer: NONE });
            return slot;
        }
        let slot = self.free;
        self.free = self.slots[slot as usize].older;
        slot
    }

    fn unlink(&mut self, slot: u32) -> Option<T> {
        let entry = self.slots.get_mut(slot as usize)?;
        let item = entry.item.take()?;
        // An old id must not match the next waiter in this slot.
        entry.generation = entry.generation.wrapping_add(1);
        let (older, newer, class) = (entry.older, entry.newer, entry.class as usize);
        (entry.older, entry.newer) = (self.free, NONE);
        self.free = slot;
        match older {
            NONE => self.classes[class].oldest = newer,
            older => self.slots[older as usize].newer = newer,
        }
        match newer {
            NONE => self.classes[class].newest = older,
            newer => self.slots[newer as usize].older = older,
        }
        self.waiting -= 1;
        Some(item)
    }
}
