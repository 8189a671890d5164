//! The schedule of one departure queue: the order and the times of departure. Pure: it knows neither locks nor wakers nor the
//! time.
//!
//! A slot is a span of a leaky bucket's time, in credits. It ends where the bucket would be empty if no other
//! request came, and its waiter is due when all but the burst has drained. Each slot is stored as the
//! distance to the one before it, so that a waiter that leaves moves all later ones in one step.
//!
//! Not all charges are in the schedule: a caller that waits elsewhere keeps its departure time. Such a charge
//! is a gap before the next slot, and no waiter moves past it, since that would use its slot twice. Credits
//! that are freed before a gap are recorded as its hole. When the charge joins the queue late, so that only
//! the hole is left, the gap is closed.

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::algorithm::leaky_bucket::LeakyBucket;
use crate::time::Timestamp;

/// No slot.
const NONE: u32 = u32::MAX;
/// The maximum number of slots that are searched from the end for a waiter that joins late.
const STEPS_MAX: usize = 64;
/// The distance of the order numbers of slots, so that others fit between.
const ORDER_STEP: u64 = 1 << 24;
/// Slots begin and end at fractions of a tick, and a late waiter knows its slot to a tick. Slots must be
/// longer than that, to be distinguishable.
const TICKS_MIN: u64 = 3;

/// The numbers of a leaky bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BucketPace {
    /// Credits per tick, credits per unit, and credits that depart without waiting.
    gain: u128,
    unit_credits: u128,
    burst_credits: u128,
}

impl BucketPace {
    /// The pace of a bucket whose slots are distinguishable: up to 333,333 units per second.
    pub(crate) fn of(quota: &LeakyBucket) -> Option<Self> {
        let pace = quota.shape().reservoir().pace();
        let (gain, unit_credits) = (pace.gain().get(), pace.unit_credits().get());
        let pace = Self {
            gain: gain.into(),
            unit_credits: unit_credits.into(),
            burst_credits: quota.immediate().into(),
        };
        (unit_credits >= TICKS_MIN * gain).then_some(pace)
    }

    /// An instant in credits.
    pub(crate) fn credits(&self, at: Timestamp) -> u128 {
        u128::from(at.unix_micros()) * self.gain
    }

    /// Credits as whole ticks and a fraction.
    pub(crate) fn parts(&self, credits: u128) -> (Timestamp, u16) {
        let ticks = u64::try_from(credits / self.gain).unwrap_or(u64::MAX);
        (Timestamp::from_unix_micros(ticks), u16::try_from(credits % self.gain).unwrap_or(0))
    }

    /// The first tick at which these credits have passed.
    pub(super) fn tick(&self, credits: u128) -> Timestamp {
        Timestamp::from_unix_micros(u64::try_from(credits.div_ceil(self.gain)).unwrap_or(u64::MAX))
    }

    /// When the waiter of a slot with this end is due.
    pub(super) fn due_at(&self, end: u128) -> Timestamp {
        self.tick(end.saturating_sub(self.burst_credits))
    }

    pub(super) fn cost(&self, units: u64) -> u128 {
        u128::from(units) * self.unit_credits
    }

    /// Whether two ends of slots are equal, as far as they are known.
    pub(crate) fn is_same(&self, one: u128, other: u128) -> bool {
        one.abs_diff(other) <= self.gain
    }
}

/// The slots of a departure queue.
#[derive(Debug)]
pub(super) struct Schedule {
    pace: BucketPace,
    /// The start of the first slot: the end of the last departure.
    front: u128,
    /// The end of the last slot.
    end: u128,
    /// Credits known to be free between the last slot and the end of the bucket, besides gaps.
    loose: u128,
    first: u32,
    last: u32,
    slots: Vec<ScheduledSlot>,
    /// Unused entries of `slots`.
    free_slots: Vec<u32>,
    /// Slots with a gap before them, by their order.
    gaps: BTreeMap<u64, u32>,
}

#[derive(Clone, Copy, Debug)]
struct ScheduledSlot {
    before: u32,
    after: u32,
    order: u64,
    cost: u128,
    /// The distance from the end of the slot before.
    gap: u128,
    /// The part of the gap that is known to be free.
    hole: u128,
}

/// Credits to give back to the bucket: if it becomes empty at `top`, it does so `by` earlier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FreedCredits {
    pub(crate) top: u128,
    pub(crate) by: u128,
}

impl Schedule {
    pub(super) const fn new(pace: BucketPace) -> Self {
        Self {
            pace,
            front: 0,
            end: 0,
            loose: 0,
            first: NONE,
            last: NONE,
            slots: Vec::new(),
            free_slots: Vec::new(),
            gaps: BTreeMap::new(),
        }
    }

    pub(super) const fn pace(&self) -> &BucketPace {
        &self.pace
    }

    /// Whether no slot is in use, due or not.
    pub(super) const fn has_no_slots(&self) -> bool {
        self.slots.len() == self.free_slots.len()
    }

    /// Adds a slot that ends at `end`, for a bucket that becomes empty at `top`. `None` if that slot is
    /// taken: the bucket was reset or has changed. Also returns the credits that are freed.
    pub(super) fn join(
        &mut self,
        end: u128,
        cost: u128,
        top: u128,
        now: u128,
    ) -> Option<(u32, FreedCredits)> {
        let start = end.checked_sub(cost)?;
        if self.first == NONE {
            self.restart(start, now);
        }
        let (before, before_end) = self.slot_before(start)?;
        // Part of a slot before the first may have passed.
        let cost = if before == NONE { cost.min(end.checked_sub(before_end)?) } else { cost };
        let after = self.after(before);
        let gap = start.saturating_sub(before_end);
        let gap = if gap <= self.pace.gain { 0 } else { gap };
        let mut slot = ScheduledSlot { before, after, order: 0, cost, gap, hole: 0 };
        slot.order = self.order_between(before, after)?;
        if after == NONE {
            let beyond = top.saturating_sub(end);
            slot.hole = self.loose.saturating_sub(beyond).min(gap);
            self.loose = self.loose.saturating_sub(gap).min(beyond);
            self.end = before_end + gap + cost;
        } else {
            let next = &mut self.slots[after as usize];
            if gap + cost > next.gap + self.pace.gain {
                return None;
            }
            let mut rest = next.gap.saturating_sub(gap + cost);
            if rest <= self.pace.gain {
                // It fits exactly, to the tick that a late waiter knows.
                (slot.gap, slot.cost, rest) = (next.gap.saturating_sub(cost), cost.min(next.gap), 0);
            }
            slot.hole = next.hole.saturating_sub(rest).min(slot.gap);
            (next.gap, next.hole) = (rest, next.hole.saturating_sub(slot.gap).min(rest));
        }
        if self.pace.is_same(slot.gap, slot.hole) {
            slot.hole = slot.gap;
        }
        let id = self.put(slot);
        self.note_gap(id);
        let mut by = self.close(id, now);
        if after != NONE {
            self.note_gap(after);
            by += self.close(after, now);
        }
        Some((id, self.give(self.end + by, by, 0)))
    }

    /// Removes all slots that are due at `now`, in order, and passes on their ends.
    pub(super) fn call_due(&mut self, now: Timestamp, mut called: impl FnMut(u32, u128)) {
        while self.next_at().is_some_and(|at| at <= now) {
            let id = self.first;
            let ScheduledSlot { gap, cost, after, order, .. } = self.slots[id as usize];
            self.front += gap + cost;
            self.gaps.remove(&order);
            self.link(NONE, after);
            called(id, self.front);
        }
    }

    /// When the first waiter is due.
    pub(super) fn next_at(&self) -> Option<Timestamp> {
        let first = self.slots.get(self.first as usize)?;
        Some(self.pace.due_at(self.front + first.gap + first.cost))
    }

    /// Removes a slot that is not due. Later slots move up to the next gap.
    pub(super) fn leave(&mut self, id: u32, now: u128) -> FreedCredits {
        let ScheduledSlot { before, after, order, cost, gap, hole } = self.slots[id as usize];
        // Part of the first slot may have passed. Any other slot follows one that is still to depart.
        let start = self.front + gap;
        let free = if before == NONE { cost.min((start + cost).saturating_sub(now)) } else { cost };
        let passed = cost - free;
        let top = self.end;
        self.gaps.remove(&order);
        let by = self.move_up(order, free);
        self.link(before, after);
        if before == NONE && start <= now {
            self.front = start + passed; // The time before it has passed too.
        } else if after == NONE {
            self.end -= gap;
            return self.give(top, by, hole);
        } else {
            let next = &mut self.slots[after as usize];
            next.gap += gap;
            next.hole += hole;
            self.note_gap(after);
        }
        self.give(top, by, 0)
    }

    /// Removes a slot that is not due, and keeps its time occupied.
    pub(super) fn quit(&mut self, id: u32) {
        let ScheduledSlot { before, after, order, cost, gap, hole } = self.slots[id as usize];
        self.gaps.remove(&order);
        self.link(before, after);
        if after == NONE {
            self.end -= gap + cost;
            self.loose += hole;
        } else {
            let next = &mut self.slots[after as usize];
            next.gap += gap + cost;
            next.hole += hole;
            self.note_gap(after);
        }
    }

    /// Records that the bucket did not take the credits: a charge follows that keeps its departure time, or
    /// has not joined yet.
    pub(super) const fn keep_freed(&mut self, freed: FreedCredits) {
        self.loose += freed.by;
    }

    /// Frees a slot that was due or left.
    pub(super) fn release(&mut self, id: u32) {
        self.free_slots.push(id);
    }

    /// The end of a slot that is not due. Takes time linear in the number of slots.
    pub(super) fn end_of(&self, id: u32) -> u128 {
        let (mut end, mut at) = (self.end, self.last);
        while at != id && at != NONE {
            let slot = &self.slots[at as usize];
            end -= slot.gap + slot.cost;
            at = slot.before;
        }
        end
    }

    /// Starts again with a slot that begins at `start`, when no slot is left. Earlier time has passed, or is
    /// a gap.
    fn restart(&mut self, start: u128, now: u128) {
        if start + self.pace.gain < self.front {
            (self.front, self.loose) = (0, 0); // The bucket was reset.
        }
        let front = self.front.max(start.min(now));
        // Free credits have passed first, as far as is known.
        self.loose = self.loose.saturating_sub(front - self.front);
        (self.front, self.end) = (front, front);
    }

    /// The slot before one that begins at `start`, and the end of it.
    fn slot_before(&self, start: u128) -> Option<(u32, u128)> {
        let (mut before, mut end) = (self.last, self.end);
        for _ in 0..STEPS_MAX {
            if end <= start + self.pace.gain || before == NONE {
                return Some((before, end));
            }
            let slot = self.slots.get(before as usize)?;
            end -= slot.gap + slot.cost;
            before = slot.before;
        }
        None
    }

    fn after(&self, before: u32) -> u32 {
        self.slots.get(before as usize).map_or(self.first, |slot| slot.after)
    }

    fn order_between(&self, before: u32, after: u32) -> Option<u64> {
        let order = |id: u32| self.slots.get(id as usize).map(|slot| slot.order);
        match (order(before), order(after)) {
            (None, None) => Some(1 << 63),
            (Some(before), None) => before.checked_add(ORDER_STEP),
            (None, Some(after)) => after.checked_sub(ORDER_STEP),
            (Some(before), Some(after)) => {
                Some(before + (after - before) / 2).filter(|order| *order != before)
            }
        }
    }

    fn put(&mut self, slot: ScheduledSlot) -> u32 {
        let id = match self.free_slots.pop() {
            Some(id) => {
                self.slots[id as usize] = slot;
                id
            }
            None => {
                self.slots.push(slot);
                u32::try_from(self.slots.len() - 1).unwrap_or(NONE)
            }
        };
        self.link(slot.before, id);
        self.link(id, slot.after);
        id
    }

    /// Links two slots.
    fn link(&mut self, before: u32, after: u32) {
        match self.slots.get_mut(before as usize) {
            Some(slot) => slot.after = after,
            None => self.first = after,
        }
        match self.slots.get_mut(after as usize) {
            Some(slot) => slot.before = before,
            None => self.last = before,
        }
    }

    fn note_gap(&mut self, id: u32) {
        let ScheduledSlot { order, gap, .. } = self.slots[id as usize];
        if gap > 0 {
            self.gaps.insert(order, id);
        } else {
            self.gaps.remove(&order);
        }
    }

    /// Closes a gap that has become free.
    fn close(&mut self, id: u32, now: u128) -> u128 {
        let ScheduledSlot { order, gap, hole, before, .. } = self.slots[id as usize];
        if gap == 0 || hole < gap {
            return 0;
        }
        let free = if before == NONE { gap.min((self.front + gap).saturating_sub(now)) } else { gap };
        if before == NONE {
            self.front += gap - free;
        }
        let slot = &mut self.slots[id as usize];
        (slot.gap, slot.hole) = (0, 0);
        self.gaps.remove(&order);
        self.move_up(order, free)
    }

    /// Moves the slots after this order up to the next gap. The freed credits go into that gap, or are
    /// returned.
    fn move_up(&mut self, order: u64, free: u128) -> u128 {
        let next = self.gaps.range((Bound::Excluded(order), Bound::Unbounded)).next();
        match next.map(|(_, id)| *id) {
            Some(id) => {
                let slot = &mut self.slots[id as usize];
                slot.gap += free;
                slot.hole += free;
                0
            }
            None => {
                self.end -= free;
                free
            }
        }
    }

    /// The credits for the bucket, with those that it did not take before. `kept` remains, since a charge
    /// follows it.
    fn give(&mut self, top: u128, by: u128, kept: u128) -> FreedCredits {
        if by == 0 {
            self.loose += kept;
            return FreedCredits::default();
        }
        let loose = std::mem::replace(&mut self.loose, kept);
        FreedCredits { top: top + loose, by: by + loose }
    }
}
