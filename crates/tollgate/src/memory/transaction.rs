//! All or nothing over several counters: locks them in one global order, decides about all, and writes all or none. Refunds and
//! resets take the same way with one counter.

use smallvec::SmallVec;

use super::{Demand, Hall, Kind, MemoryStore, NO_ROOM, decide};
use crate::charge::{Answer, Answers, Charge};
use crate::decision::{Source, Stance};
use crate::key::Fingerprint;
use crate::memory::shelf::{Change, Shard, Shelf};
use crate::memory::table::{Entry, Full};
use crate::outcome::{Outcome, Verdict};
use crate::quota::Quota;
use crate::store::StoreFailure;
use crate::sync::MutexGuard;
use crate::time::Timestamp;

/// What one counter holds.
#[derive(Clone, Copy, Debug)]
enum Held {
    Word(Option<Entry<1>>),
    Pair(Option<Entry<2>>),
    /// Large states are charged where they are; see [`Change`].
    Large,
}

/// Where a counter is locked. The order of this type is the order in which locks are taken, which excludes deadlock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Seat {
    overflow: bool,
    kind: Kind,
    bucket: usize,
}

/// Where there is room for a counter, as far as is known: each is tried before the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    Main,
    Shared,
    Nowhere,
}

/// A charge with its place and its decision.
struct Item<'c> {
    charge: &'c Charge<'c>,
    key: Fingerprint,
    seat: Seat,
    /// What the counter held when it was decided about.
    held: Held,
    /// What it is to hold, if that changes.
    keep: Option<Held>,
    /// The same for a large state.
    change: Change,
    /// There is no room for it anywhere.
    is_homeless: bool,
    outcome: Outcome,
}

type ShardGuard<'s> = MutexGuard<'s, Shard>;

/// The locks of one transaction, and the only way to what they guard. Dropping it lets go of them.
struct Locks<'s> {
    store: &'s MemoryStore,
    now: Timestamp,
    seats: SmallVec<[Seat; 8]>,
    shards: SmallVec<[(Seat, ShardGuard<'s>); 2]>,
}

impl MemoryStore {
    const fn hall(&self, overflow: bool) -> &Hall {
        if overflow { &self.overflow } else { &self.main }
    }

    /// Charges several counters, all or none.
    pub(super) fn charge_all(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<Answers, StoreFailure> {
        let mut rooms: SmallVec<[Room; 8]> = SmallVec::from_elem(Room::Main, charges.len());
        loop {
            let mut items: SmallVec<[Item<'_>; 6]> = charges
                .iter()
                .zip(&rooms)
                .map(|(charge, &room)| self.item(charge, room != Room::Main, now))
                .collect();
            let mut locks = self.lock_all(&items, now);
            if !items.iter().all(|item| locks.own(item)) {
                continue; // The table grew between finding the seats and locking them.
            }
            if let Err(failure) = locks.decide_all(&mut items, &rooms) {
                items.iter_mut().for_each(|item| locks.undo(item));
                return Err(failure);
            }
            if !items.iter().all(|item| item.charge.stance == Stance::Shadow || item.outcome.is_allowed()) {
                return locks.refuse(&mut items);
            }
            match locks.write_all(&mut items) {
                Ok(()) => {
                    drop(locks);
                    self.tidy(now);
                    return Ok(answers(&items, now));
                }
                Err((index, Full)) if rooms[index] == Room::Main => rooms[index] = Room::Shared,
                Err((index, Full)) => rooms[index] = Room::Nowhere,
            }
        }
    }

    /// Gives back what a charge took, where it was taken from.
    pub(crate) fn refund_now(&self, charge: &Charge<'_>, now: Timestamp) -> Result<(), StoreFailure> {
        // A permit has a name, so it is found wherever it was taken. Units have none: what was taken from a shared counter is not
        // given back, since it might be given to a key that never paid.
        let halls: &[bool] =
            if matches!(charge.quota, Quota::Concurrency(_)) { &[false, true] } else { &[false] };
        let now = self.origin.clamp(now);
        for &overflow in halls {
            let (mut item, mut locks) = self.lock_one(charge, overflow, now);
            locks.refund(&mut item)?;
        }
        Ok(())
    }

    /// Gives back to a leaky bucket what its last charge took, if this is it.
    pub(crate) fn step_back_now(&self, charge: &Charge<'_>, empty_at: Timestamp, now: Timestamp) -> bool {
        let (mut item, mut locks) = self.lock_one(charge, false, self.origin.clamp(now));
        let Held::Word(Some(entry)) = locks.read(&item) else { return false };
        let next = decide::step_back_word(charge, entry, empty_at, locks.now, self.origin);
        item.keep = next.map(|entry| Held::Word(Some(entry)));
        // The key has its slot already, so there is always room.
        let _ = locks.write(&mut item);
        next.is_some()
    }

    /// Lets a permit live anew, wherever it was taken.
    pub(crate) fn renew_now(&self, charge: &Charge<'_>, now: Timestamp) -> Result<(), StoreFailure> {
        let now = self.origin.clamp(now);
        for overflow in [false, true] {
            let (item, mut locks) = self.lock_one(charge, overflow, now);
            if let Some(known) = locks.shard(item.seat).and_then(|shard| shard.get_mut(&item.key)) {
                known.renew(charge, now)?;
            }
        }
        Ok(())
    }

    /// Takes units without asking, down to none; of a permit that was given elsewhere, whatever is left.
    pub(crate) fn debit_now(&self, charge: &Charge<'_>, now: Timestamp) -> Result<(), StoreFailure> {
        if matches!(charge.quota, Quota::Concurrency(_)) && charge.cost > 0 {
            let now = self.origin.clamp(now);
            let (item, mut locks) = self.lock_one(charge, false, now);
            if let Some(known) = locks.shard(item.seat).and_then(|shard| shard.get_mut(&item.key)) {
                return known.take_note(charge, now);
            }
        }
        self.ask(charge, Demand::UpTo(0), now).map(drop)
    }

    /// Forgets a counter.
    pub(crate) fn reset_now(&self, charge: &Charge<'_>, now: Timestamp) {
        let (item, mut locks) = self.lock_one(charge, false, self.origin.clamp(now));
        locks.remove(&item);
    }

    fn lock_one<'c>(&self, charge: &'c Charge<'c>, overflow: bool, now: Timestamp) -> (Item<'c>, Locks<'_>) {
        loop {
            let item = self.item(charge, overflow, now);
            let locks = self.lock_all(std::slice::from_ref(&item), now);
            if locks.own(&item) {
                return (item, locks);
            }
        }
    }

    /// Lets the tables finish growing, a little at a time. Called with no lock held.
    fn tidy(&self, now: Timestamp) {
        self.main.words.tidy(self.origin.word(now));
        self.main.pairs.tidy(now.unix_micros());
    }

    fn item<'c>(&self, charge: &'c Charge<'c>, overflow: bool, now: Timestamp) -> Item<'c> {
        let key = if overflow { charge.family.overflow(charge.key) } else { charge.key };
        let kind = Kind::of(charge);
        let hall = self.hall(overflow);
        let bucket = match kind {
            Kind::Word => hall.words.bucket(key, self.origin.word(now)),
            Kind::Pair => hall.pairs.bucket(key, now.unix_micros()),
            Kind::Large => Shelf::shard_of(key),
        };
        let seat = Seat { overflow, kind, bucket };
        let (held, change) = (Held::Large, Change::default());
        Item { charge, key, seat, held, keep: None, change, is_homeless: false, outcome: NO_ROOM }
    }

    fn lock_all(&self, items: &[Item<'_>], now: Timestamp) -> Locks<'_> {
        let mut seats: SmallVec<[Seat; 8]> = items.iter().map(|item| item.seat).collect();
        seats.sort_unstable();
        seats.dedup();
        let mut locks = Locks { store: self, now, seats: SmallVec::new(), shards: SmallVec::new() };
        for seat in seats {
            let hall = self.hall(seat.overflow);
            match seat.kind {
                Kind::Word => hall.words.lock(seat.bucket),
                Kind::Pair => hall.pairs.lock(seat.bucket),
                Kind::Large => locks.shards.push((seat, hall.shelf.lock(seat.bucket))),
            }
            locks.seats.push(seat);
        }
        locks
    }
}

impl Drop for Locks<'_> {
    fn drop(&mut self) {
        for seat in self.seats.drain(..) {
            let hall = self.store.hall(seat.overflow);
            match seat.kind {
                Kind::Word => hall.words.unlock(seat.bucket),
                Kind::Pair => hall.pairs.unlock(seat.bucket),
                Kind::Large => {}
            }
        }
    }
}

impl Locks<'_> {
    /// Whether the key is still in the bucket that was locked for it.
    fn own(&self, item: &Item<'_>) -> bool {
        let hall = self.store.hall(item.seat.overflow);
        match item.seat.kind {
            Kind::Word => hall.words.owns(item.seat.bucket, item.key),
            Kind::Pair => hall.pairs.owns(item.seat.bucket, item.key),
            Kind::Large => true,
        }
    }

    fn read(&self, item: &Item<'_>) -> Held {
        let hall = self.store.hall(item.seat.overflow);
        match item.seat.kind {
            Kind::Word => Held::Word(hall.words.get(item.seat.bucket, item.key)),
            Kind::Pair => Held::Pair(hall.pairs.get(item.seat.bucket, item.key)),
            Kind::Large => Held::Large,
        }
    }

    fn decide_all(&mut self, items: &mut [Item<'_>], rooms: &[Room]) -> Result<(), StoreFailure> {
        for (item, &room) in items.iter_mut().zip(rooms) {
            if room == Room::Nowhere {
                // It denies: for an enforced limit nothing is then written at all, and one in shadow is left out.
                item.is_homeless = true;
                item.outcome = Outcome { limit: item.charge.quota.capacity(), ..NO_ROOM };
                continue;
            }
            item.held = self.read(item);
            item.outcome = self.decide(item, item.charge)?;
        }
        Ok(())
    }

    fn decide(&mut self, item: &mut Item<'_>, charge: &Charge<'_>) -> Result<Outcome, StoreFailure> {
        Ok(match item.held {
            Held::Word(entry) => {
                let (keep, outcome) = decide::word(charge, entry, self.now, self.store.origin)?;
                item.keep = keep.map(|entry| Held::Word(Some(entry)));
                outcome
            }
            Held::Pair(entry) => {
                let (keep, outcome) = decide::pair(charge, entry, self.now, &self.store.walls)?;
                item.keep = keep.map(|entry| Held::Pair(Some(entry)));
                outcome
            }
            Held::Large => {
                let (seat, now) = (item.seat, self.now);
                let shelf = &self.store.hall(seat.overflow).shelf;
                let told = match self.shard(seat) {
                    Some(shard) => shelf.step(shard, item.key, charge, now, &mut item.change)?,
                    None => (NO_ROOM, Source::Full),
                };
                item.is_homeless |= told.1 == Source::Full;
                told.0
            }
        })
    }

    fn shard(&mut self, wanted: Seat) -> Option<&mut Shard> {
        self.shards.iter_mut().find(|(seat, _)| *seat == wanted).map(|(_, shard)| &mut **shard)
    }

    /// Takes back what was done to a large state.
    fn undo(&mut self, item: &mut Item<'_>) {
        let (now, shelf) = (self.now, &self.store.hall(item.seat.overflow).shelf);
        let Change { undo, .. } = std::mem::take(&mut item.change);
        if undo.is_some()
            && let Some(known) = self.shard(item.seat).and_then(|shard| shard.get_mut(&item.key))
        {
            known.undo(item.charge, now, undo);
            shelf.give_spare(known);
        }
    }

    fn refund(&mut self, item: &mut Item<'_>) -> Result<(), StoreFailure> {
        item.keep = match self.read(item) {
            Held::Word(Some(entry)) => {
                Some(Held::Word(Some(decide::refund_word(item.charge, entry, self.now, self.store.origin)?)))
            }
            Held::Pair(Some(entry)) => {
                Some(Held::Pair(Some(decide::refund_pair(item.charge, entry, self.now, &self.store.walls)?)))
            }
            Held::Large => return self.refund_large(item),
            Held::Word(None) | Held::Pair(None) => None,
        };
        // The key has its slot already, so there is always room.
        let _ = self.write(item);
        Ok(())
    }

    fn refund_large(&mut self, item: &Item<'_>) -> Result<(), StoreFailure> {
        let now = self.now;
        let shelf = &self.store.hall(item.seat.overflow).shelf;
        let Some(shard) = self.shard(item.seat) else { return Ok(()) };
        let Some(known) = shard.get_mut(&item.key) else { return Ok(()) };
        known.refund(item.charge, now)?;
        // What equals absence, as a released permit leaves it, need not be kept.
        if shelf.is_idle(known, now) {
            shelf.remove(shard, item.key);
        } else {
            shelf.give_spare(known);
        }
        Ok(())
    }

    /// Answers a request that was not admitted. Nothing is charged; only a clamp that a step of the clock made necessary is
    /// kept, since otherwise the step, and not one interval, would have to pass.
    fn refuse(&mut self, items: &mut [Item<'_>]) -> Result<Answers, StoreFailure> {
        for item in items.iter_mut() {
            let admitted = item.outcome.is_allowed();
            if !admitted && item.keep.is_some() {
                let _ = self.write(item); // A clamped state has its slot, so there is room.
            }
            if admitted {
                self.undo(item);
                let look = Charge { cost: 0, ..*item.charge };
                item.outcome = Outcome { verdict: Verdict::Allow, ..self.decide(item, &look)? };
            }
        }
        Ok(answers(items, self.now))
    }

    /// Writes every state that changes. If there is no room for one, takes the others back.
    fn write_all(&mut self, items: &mut [Item<'_>]) -> Result<(), (usize, Full)> {
        for index in 0..items.len() {
            let item = &mut items[index];
            if !item.outcome.is_allowed() {
                continue;
            }
            if let Err(full) = self.write(item) {
                let restore = items[..index].iter_mut().filter(|item| item.outcome.is_allowed());
                restore.for_each(|item| self.restore(item));
                items[index..].iter_mut().for_each(|item| self.undo(item));
                return Err((index, full));
            }
        }
        Ok(())
    }

    /// Puts back what the counter held before.
    fn restore(&mut self, item: &mut Item<'_>) {
        match item.held {
            Held::Word(None) | Held::Pair(None) => self.remove(item),
            Held::Large if item.change.undo.is_none() => self.remove_fresh(item),
            Held::Large => self.undo(item),
            held => {
                let _ = self.put(item, held); // It was there a moment ago, under the same lock.
            }
        }
    }

    fn write(&mut self, item: &mut Item<'_>) -> Result<(), Full> {
        if let Some(fresh) = item.change.fresh.take().filter(|_| item.charge.cost > 0) {
            let now = self.now;
            let shelf = &self.store.hall(item.seat.overflow).shelf;
            item.change.is_kept = true;
            return self.shard(item.seat).map_or(Ok(()), |shard| shelf.put(shard, item.key, now, *fresh));
        }
        item.keep.map_or(Ok(()), |held| self.put(item, held))
    }

    fn put(&mut self, item: &Item<'_>, held: Held) -> Result<(), Full> {
        let hall = self.store.hall(item.seat.overflow);
        let (bucket, key) = (item.seat.bucket, item.key);
        match held {
            Held::Word(Some(entry)) => hall.words.put(bucket, key, self.store.origin.word(self.now), entry),
            Held::Pair(Some(entry)) => hall.pairs.put(bucket, key, self.now.unix_micros(), entry),
            Held::Word(None) | Held::Pair(None) | Held::Large => Ok(()),
        }
    }

    /// Removes a large state that this transaction has put on the shelf.
    fn remove_fresh(&mut self, item: &Item<'_>) {
        if item.change.is_kept {
            self.remove(item);
        }
    }

    fn remove(&mut self, item: &Item<'_>) {
        let hall = self.store.hall(item.seat.overflow);
        match item.seat.kind {
            Kind::Word => {
                hall.words.remove(item.seat.bucket, item.key);
            }
            Kind::Pair => {
                hall.pairs.remove(item.seat.bucket, item.key);
            }
            Kind::Large => {
                if let Some(shard) = self.shard(item.seat) {
                    hall.shelf.remove(shard, item.key);
                }
            }
        }
    }
}

fn answers(items: &[Item<'_>], now: Timestamp) -> Answers {
    items
        .iter()
        .map(|item| {
            let source = match item.seat.overflow {
                _ if item.is_homeless => Source::Full,
                true => Source::Overflow,
                false => Source::Exact,
            };
            Answer::new(item.outcome, source).charged(now)
        })
        .collect()
}
