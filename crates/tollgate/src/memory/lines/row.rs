//! Who stands in one line, and when each may go. Pure: it knows neither locks nor wakers nor what time it is.
//!
//! A place is a slot of a leaky bucket's time, in credits: it ends where the bucket would be empty if nobody came after it, and its turn comes
//! when all but the burst of that has drained. Each is kept as the distance to the one before it, so that whoever leaves in the middle moves
//! everybody behind in one step.
//!
//! Not all charges stand in the row: a caller who was told to wait, and does so elsewhere, keeps its instant. Such a charge is a gap before the
//! next place, and nobody moves past it, since that would be a second departure in its slot. What becomes free before a gap is noted as its
//! hole; when whoever was charged there lines up after all, so that nothing but the hole is left, it is closed.

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::algorithm::leaky_bucket::LeakyBucket;
use crate::time::Timestamp;

/// Nobody.
const NONE: u32 = u32::MAX;
/// How many places are passed by, from the last on, to find that of somebody who lines up late.
const STEPS_MAX: usize = 64;
/// The distance of the numbers that order the places, so that others fit between.
const ORDER_STEP: u64 = 1 << 24;
/// Slots begin or end at fractions of a tick, and who lines up late knows its own to a tick: slots must be longer, to be told apart.
const TICKS_MIN: u64 = 3;

/// The numbers of the bucket that a row stands at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pitch {
    /// Credits a tick, credits a unit, and credits that leave without waiting.
    gain: u128,
    price: u128,
    at_once: u128,
}

impl Pitch {
    /// Of a bucket whose slots can be told apart, which is so up to 333,333 units a second.
    pub(super) fn of(quota: &LeakyBucket) -> Option<Self> {
        let pace = quota.shape().reservoir().pace();
        let (gain, price) = (pace.gain().get(), pace.price().get());
        let pitch = Self { gain: gain.into(), price: price.into(), at_once: quota.at_once().into() };
        (price >= TICKS_MIN * gain).then_some(pitch)
    }

    /// An instant in credits.
    pub(super) fn credits(&self, at: Timestamp) -> u128 {
        u128::from(at.unix_micros()) * self.gain
    }

    /// The whole ticks and the fraction of so many credits.
    pub(super) fn parts(&self, credits: u128) -> (Timestamp, u16) {
        let ticks = u64::try_from(credits / self.gain).unwrap_or(u64::MAX);
        (Timestamp::from_unix_micros(ticks), u16::try_from(credits % self.gain).unwrap_or(0))
    }

    /// The first tick at which so many credits have passed.
    pub(super) fn tick(&self, credits: u128) -> Timestamp {
        Timestamp::from_unix_micros(u64::try_from(credits.div_ceil(self.gain)).unwrap_or(u64::MAX))
    }

    /// When the turn comes of a slot that ends there.
    pub(super) fn turn(&self, end: u128) -> Timestamp {
        self.tick(end.saturating_sub(self.at_once))
    }

    pub(super) fn cost(&self, units: u64) -> u128 {
        u128::from(units) * self.price
    }

    /// Whether two ends of slots are the same, as far as they are known.
    pub(super) fn is_same(&self, one: u128, other: u128) -> bool {
        one.abs_diff(other) <= self.gain
    }
}

/// A row of places.
#[derive(Debug)]
pub(super) struct Row {
    pitch: Pitch,
    /// Where the slots begin: the end of whoever went before the first.
    front: u128,
    /// The end of the last.
    end: u128,
    /// What is known to be free between the last and the end of the bucket, beside gaps.
    loose: u128,
    first: u32,
    last: u32,
    places: Vec<Place>,
    /// Places that nobody has.
    vacant: Vec<u32>,
    /// Places before which there is a gap, by their order.
    gaps: BTreeMap<u64, u32>,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    before: u32,
    after: u32,
    order: u64,
    cost: u128,
    /// From the end of the one before to the beginning of this.
    gap: u128,
    /// What of that is known to be free.
    hole: u128,
}

/// What a row has to give back to its bucket: if that is empty at `top`, it is `by` earlier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Return {
    pub(super) top: u128,
    pub(super) by: u128,
}

impl Row {
    pub(super) const fn new(pitch: Pitch) -> Self {
        Self {
            pitch,
            front: 0,
            end: 0,
            loose: 0,
            first: NONE,
            last: NONE,
            places: Vec::new(),
            vacant: Vec::new(),
            gaps: BTreeMap::new(),
        }
    }

    pub(super) const fn pitch(&self) -> &Pitch {
        &self.pitch
    }

    /// Whether nobody has a place, called or not.
    pub(super) const fn is_vacant(&self) -> bool {
        self.places.len() == self.vacant.len()
    }

    /// Takes a place whose slot ends at `end`, at a bucket that is empty at `top`. None if that slot is another's: the bucket was reset, or told
    /// another story. The second is what becomes free by it.
    pub(super) fn join(&mut self, end: u128, cost: u128, top: u128, now: u128) -> Option<(u32, Return)> {
        let start = end.checked_sub(cost)?;
        if self.first == NONE {
            self.restart(start, now);
        }
        let (before, before_end) = self.spot(start)?;
        // Of a slot before the first a part may have passed.
        let cost = if before == NONE { cost.min(end.checked_sub(before_end)?) } else { cost };
        let after = self.after(before);
        let gap = start.saturating_sub(before_end);
        let gap = if gap <= self.pitch.gain { 0 } else { gap };
        let mut place = Place { before, after, order: 0, cost, gap, hole: 0 };
        place.order = self.order_between(before, after)?;
        if after == NONE {
            let beyond = top.saturating_sub(end);
            place.hole = self.loose.saturating_sub(beyond).min(gap);
            self.loose = self.loose.saturating_sub(gap).min(beyond);
            self.end = before_end + gap + cost;
        } else {
            let next = &mut self.places[after as usize];
            if gap + cost > next.gap + self.pitch.gain {
                return None;
            }
            let mut rest = next.gap.saturating_sub(gap + cost);
            if rest <= self.pitch.gain {
                // It fits exactly, and who lined up late knows that to a tick.
                (place.gap, place.cost, rest) = (next.gap.saturating_sub(cost), cost.min(next.gap), 0);
            }
            place.hole = next.hole.saturating_sub(rest).min(place.gap);
            (next.gap, next.hole) = (rest, next.hole.saturating_sub(place.gap).min(rest));
        }
        if self.pitch.is_same(place.gap, place.hole) {
            place.hole = place.gap;
        }
        let id = self.put(place);
        self.note_gap(id);
        let mut by = self.close(id, now);
        if after != NONE {
            self.note_gap(after);
            by += self.close(after, now);
        }
        Some((id, self.give(self.end + by, by, 0)))
    }

    /// Calls everybody whose turn has come by `now`, in their order, and tells where their slots end.
    pub(super) fn call(&mut self, now: Timestamp, mut called: impl FnMut(u32, u128)) {
        while self.next_at().is_some_and(|at| at <= now) {
            let id = self.first;
            let Place { gap, cost, after, order, .. } = self.places[id as usize];
            self.front += gap + cost;
            self.gaps.remove(&order);
            self.link(NONE, after);
            called(id, self.front);
        }
    }

    /// When the first one's turn comes.
    pub(super) fn next_at(&self) -> Option<Timestamp> {
        let first = self.places.get(self.first as usize)?;
        Some(self.pitch.turn(self.front + first.gap + first.cost))
    }

    /// Somebody who was not called leaves, and all behind move up, as far as nobody is in between who keeps its instant.
    pub(super) fn leave(&mut self, id: u32, now: u128) -> Return {
        let Place { before, after, order, cost, gap, hole } = self.places[id as usize];
        // Of the first one's slot a part may have passed. Before all others is somebody who is still to go.
        let start = self.front + gap;
        let free = if before == NONE { cost.min((start + cost).saturating_sub(now)) } else { cost };
        let passed = cost - free;
        let top = self.end;
        self.gaps.remove(&order);
        let by = self.move_up(order, free);
        self.link(before, after);
        if before == NONE && start <= now {
            self.front = start + passed; // What was before it has passed, too.
        } else if after == NONE {
            self.end -= gap;
            return self.give(top, by, hole);
        } else {
            let next = &mut self.places[after as usize];
            next.gap += gap;
            next.hole += hole;
            self.note_gap(after);
        }
        self.give(top, by, 0)
    }

    /// Somebody who was not called stands here no longer, and keeps its slot.
    pub(super) fn quit(&mut self, id: u32) {
        let Place { before, after, order, cost, gap, hole } = self.places[id as usize];
        self.gaps.remove(&order);
        self.link(before, after);
        if after == NONE {
            self.end -= gap + cost;
            self.loose += hole;
        } else {
            let next = &mut self.places[after as usize];
            next.gap += gap + cost;
            next.hole += hole;
            self.note_gap(after);
        }
    }

    /// The bucket has not taken what it was given: somebody is behind who keeps its instant, or has not lined up yet.
    pub(super) const fn refused(&mut self, refused: Return) {
        self.loose += refused.by;
    }

    /// Lets another have a place that was called or left.
    pub(super) fn vacate(&mut self, id: u32) {
        self.vacant.push(id);
    }

    /// Where the slot of somebody ends who was not called. Takes as long as the row is.
    pub(super) fn end_of(&self, id: u32) -> u128 {
        let (mut end, mut at) = (self.end, self.last);
        while at != id && at != NONE {
            let place = &self.places[at as usize];
            end -= place.gap + place.cost;
            at = place.before;
        }
        end
    }

    /// Somebody with a slot that begins at `start` comes where nobody stands. Whatever was before has passed by now, or is a gap.
    fn restart(&mut self, start: u128, now: u128) {
        if start + self.pitch.gain < self.front {
            (self.front, self.loose) = (0, 0); // The bucket was reset.
        }
        let front = self.front.max(start.min(now));
        // What was free has passed first, as far as is known.
        self.loose = self.loose.saturating_sub(front - self.front);
        (self.front, self.end) = (front, front);
    }

    /// Behind whom a slot begins at `start`, and where that one's ends.
    fn spot(&self, start: u128) -> Option<(u32, u128)> {
        let (mut before, mut end) = (self.last, self.end);
        for _ in 0..STEPS_MAX {
            if end <= start + self.pitch.gain || before == NONE {
                return Some((before, end));
            }
            let place = self.places.get(before as usize)?;
            end -= place.gap + place.cost;
            before = place.before;
        }
        None
    }

    fn after(&self, before: u32) -> u32 {
        self.places.get(before as usize).map_or(self.first, |place| place.after)
    }

    fn order_between(&self, before: u32, after: u32) -> Option<u64> {
        let order = |id: u32| self.places.get(id as usize).map(|place| place.order);
        match (order(before), order(after)) {
            (None, None) => Some(1 << 63),
            (Some(before), None) => before.checked_add(ORDER_STEP),
            (None, Some(after)) => after.checked_sub(ORDER_STEP),
            (Some(before), Some(after)) => {
                Some(before + (after - before) / 2).filter(|order| *order != before)
            }
        }
    }

    fn put(&mut self, place: Place) -> u32 {
        let id = match self.vacant.pop() {
            Some(id) => {
                self.places[id as usize] = place;
                id
            }
            None => {
                self.places.push(place);
                u32::try_from(self.places.len() - 1).unwrap_or(NONE)
            }
        };
        self.link(place.before, id);
        self.link(id, place.after);
        id
    }

    /// Lets one stand right before the other.
    fn link(&mut self, before: u32, after: u32) {
        match self.places.get_mut(before as usize) {
            Some(place) => place.after = after,
            None => self.first = after,
        }
        match self.places.get_mut(after as usize) {
            Some(place) => place.before = before,
            None => self.last = before,
        }
    }

    fn note_gap(&mut self, id: u32) {
        let Place { order, gap, .. } = self.places[id as usize];
        if gap > 0 {
            self.gaps.insert(order, id);
        } else {
            self.gaps.remove(&order);
        }
    }

    /// Closes a gap in which nobody is left.
    fn close(&mut self, id: u32, now: u128) -> u128 {
        let Place { order, gap, hole, before, .. } = self.places[id as usize];
        if gap == 0 || hole < gap {
            return 0;
        }
        let free = if before == NONE { gap.min((self.front + gap).saturating_sub(now)) } else { gap };
        if before == NONE {
            self.front += gap - free;
        }
        let place = &mut self.places[id as usize];
        (place.gap, place.hole) = (0, 0);
        self.gaps.remove(&order);
        self.move_up(order, free)
    }

    /// Whoever is behind this order comes nearer, up to the next gap: what is free is then there, or at the end, and that is told.
    fn move_up(&mut self, order: u64, free: u128) -> u128 {
        let next = self.gaps.range((Bound::Excluded(order), Bound::Unbounded)).next();
        match next.map(|(_, id)| *id) {
            Some(id) => {
                let place = &mut self.places[id as usize];
                place.gap += free;
                place.hole += free;
                0
            }
            None => {
                self.end -= free;
                free
            }
        }
    }

    /// What the bucket is to be given, with what it would not take before. What is kept stays loose, since somebody is behind it.
    fn give(&mut self, top: u128, by: u128, kept: u128) -> Return {
        if by == 0 {
            self.loose += kept;
            return Return::default();
        }
        let loose = std::mem::replace(&mut self.loose, kept);
        Return { top: top + loose, by: by + loose }
    }
}
