//! Transactions over several counters, all or nothing: locks them in one global order, decides all, and
//! writes all or none. Refunds and resets use the same path with one counter.

use smallvec::SmallVec;

mod fast_path;

use super::{ChargeMode, FULL_OUTCOME, MemoryStore, PartitionId, StateKind, decide};
use crate::key::Fingerprint;
use crate::memory::large::{LargeChange, LargeMap, Shard};
use crate::memory::table::{Full, SlotEntry};
use crate::outcome::{Outcome, Source, Verdict};
use crate::quota::Quota;
use crate::store::{Answers, Charge, ChargeAnswer, Enforcement, StoreFailure};
use crate::sync::MutexGuard;
use crate::time::Timestamp;

/// The state of one counter.
#[derive(Clone, Copy, Debug)]
enum HeldState {
    Word(Option<SlotEntry<1>>),
    Pair(Option<SlotEntry<2>>),
    /// Large states are charged in place; see [`LargeChange`].
    Large,
}

/// The position of a counter in the lock order. Locks are taken in the order of this type, which excludes
/// deadlock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct LockPosition {
    partition: PartitionId,
    kind: StateKind,
    bucket: usize,
}

/// Where a counter has space, as far as is known. Each is tried before the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Placement {
    Main,
    Overflow,
    Nowhere,
}

impl Placement {
    const fn partition(self) -> PartitionId {
        match self {
            Placement::Main => PartitionId::Main,
            Placement::Overflow | Placement::Nowhere => PartitionId::Overflow,
        }
    }
}

/// A charge with its lock position and its decision.
struct Item<'c> {
    charge: &'c Charge<'c>,
    key: Fingerprint,
    position: LockPosition,
    /// The state that was decided on.
    held: HeldState,
    /// The state to write, if it changes.
    keep: Option<HeldState>,
    /// The change of a large state.
    change: LargeChange,
    /// Whether no partition has space for it.
    has_no_space: bool,
    outcome: Outcome,
}

type ShardGuard<'s> = MutexGuard<'s, Shard>;

/// The locks of one transaction, and the only access to what they guard. Dropping it unlocks them.
struct Locks<'s> {
    store: &'s MemoryStore,
    now: Timestamp,
    positions: SmallVec<[LockPosition; 8]>,
    shards: SmallVec<[(LockPosition, ShardGuard<'s>); 2]>,
}

impl MemoryStore {
    /// Charges several counters, all or none. The answers are written to `answers`, which must be empty.
    #[inline]
    pub(super) fn charge_all(
        &self,
        charges: &[Charge<'_>],
        now: Timestamp,
        answers: &mut Answers,
    ) -> Result<(), StoreFailure> {
        if self.charge_known(charges, now, answers).is_none() {
            *answers = self.charge_any(charges, now)?;
        }
        Ok(())
    }

    /// Charges several counters of any kind, all or none.
    fn charge_any(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<Answers, StoreFailure> {
        let mut placements: SmallVec<[Placement; 8]> = SmallVec::from_elem(Placement::Main, charges.len());
        loop {
            let mut items: SmallVec<[Item<'_>; 6]> = charges
                .iter()
                .zip(&placements)
                .map(|(charge, &placement)| self.item(charge, placement.partition(), now))
                .collect();
            let mut locks = self.lock_all(&items, now);
            if !items.iter().all(|item| locks.own(item)) {
                continue; // The table grew between finding the positions and locking them.
            }
            if let Err(failure) = locks.decide_all(&mut items, &placements) {
                items.iter_mut().for_each(|item| locks.undo(item));
                return Err(failure);
            }
            if !items
                .iter()
                .all(|item| item.charge.enforcement == Enforcement::Shadow || item.outcome.is_allowed())
            {
                return locks.refuse(&mut items);
            }
            match locks.write_all(&mut items) {
                Ok(()) => {
                    drop(locks);
                    self.tidy(now);
                    return Ok(answers(&items, now));
                }
                Err((index, Full)) if placements[index] == Placement::Main => {
                    placements[index] = Placement::Overflow
                }
                Err((index, Full)) => placements[index] = Placement::Nowhere,
            }
        }
    }

    /// Refunds a charge where it was made.
    pub(crate) fn refund_now(&self, charge: &Charge<'_>, now: Timestamp) -> Result<(), StoreFailure> {
        // Permits have ids, so they are found in either partition. Units of a shared counter are not
        // refunded, since they might go to a key that was never charged.
        let partitions: &[PartitionId] = if matches!(charge.quota, Quota::Concurrency(_)) {
            &[PartitionId::Main, PartitionId::Overflow]
        } else {
            &[PartitionId::Main]
        };
        let now = self.origin.clamp(now);
        for &partition in partitions {
            let (mut item, mut locks) = self.lock_one(charge, partition, now);
            locks.refund(&mut item)?;
        }
        Ok(())
    }

    /// Takes back the last charge of a leaky bucket, if it is the last.
    pub(crate) fn step_back_now(&self, charge: &Charge<'_>, empty_at: Timestamp, now: Timestamp) -> bool {
        let (mut item, mut locks) = self.lock_one(charge, PartitionId::Main, self.origin.clamp(now));
        let HeldState::Word(Some(entry)) = locks.read(&item) else { return false };
        let next = decide::step_back_word(charge, entry, empty_at, locks.now, self.origin);
        item.keep = next.map(|entry| HeldState::Word(Some(entry)));
        // The key has a slot already, so there is always space.
        let _ = locks.write(&mut item);
        next.is_some()
    }

    /// Renews a permit, in either partition.
    pub(crate) fn renew_now(&self, charge: &Charge<'_>, now: Timestamp) -> Result<(), StoreFailure> {
        let now = self.origin.clamp(now);
        for partition in [PartitionId::Main, PartitionId::Overflow] {
            let (item, mut locks) = self.lock_one(charge, partition, now);
            if let Some(known) = locks.shard(item.position).and_then(|shard| shard.get_mut(&item.key)) {
                known.renew(charge, now)?;
            }
        }
        Ok(())
    }

    /// Charges units without a check, down to none. Records a permit that was granted elsewhere.
    pub(crate) fn debit_now(&self, charge: &Charge<'_>, now: Timestamp) -> Result<(), StoreFailure> {
        if matches!(charge.quota, Quota::Concurrency(_)) && charge.cost > 0 {
            let now = self.origin.clamp(now);
            let (item, mut locks) = self.lock_one(charge, PartitionId::Main, now);
            if let Some(known) = locks.shard(item.position).and_then(|shard| shard.get_mut(&item.key)) {
                return known.record_permit(charge, now);
            }
        }
        self.ask(charge, ChargeMode::UpTo(0), now).map(drop)
    }

    /// Resets a counter.
    pub(crate) fn reset_now(&self, charge: &Charge<'_>, now: Timestamp) {
        let (item, mut locks) = self.lock_one(charge, PartitionId::Main, self.origin.clamp(now));
        locks.remove(&item);
    }

    fn lock_one<'c>(&self, charge: &'c Charge<'c>, id: PartitionId, now: Timestamp) -> (Item<'c>, Locks<'_>) {
        loop {
            let item = self.item(charge, id, now);
            let locks = self.lock_all(std::slice::from_ref(&item), now);
            if locks.own(&item) {
                return (item, locks);
            }
        }
    }

    /// Continues the growth of the tables, a little at a time. Called without any lock.
    fn tidy(&self, now: Timestamp) {
        self.main.words.tidy(self.origin.word(now));
        self.main.pairs.tidy(now.unix_micros());
    }

    fn item<'c>(&self, charge: &'c Charge<'c>, id: PartitionId, now: Timestamp) -> Item<'c> {
        let key = match id {
            PartitionId::Main => charge.key,
            PartitionId::Overflow => charge.family.overflow(charge.key),
        };
        let kind = StateKind::of(charge);
        let partition = self.partition(id);
        let bucket = match kind {
            StateKind::Word => partition.words.bucket(key, self.origin.word(now)),
            StateKind::Pair => partition.pairs.bucket(key, now.unix_micros()),
            StateKind::Large => LargeMap::shard_of(key),
        };
        let position = LockPosition { partition: id, kind, bucket };
        let (held, change) = (HeldState::Large, LargeChange::default());
        Item { charge, key, position, held, keep: None, change, has_no_space: false, outcome: FULL_OUTCOME }
    }

    fn lock_all(&self, items: &[Item<'_>], now: Timestamp) -> Locks<'_> {
        let mut positions: SmallVec<[LockPosition; 8]> = items.iter().map(|item| item.position).collect();
        positions.sort_unstable();
        positions.dedup();
        let mut locks = Locks { store: self, now, positions: SmallVec::new(), shards: SmallVec::new() };
        for position in positions {
            let partition = self.partition(position.partition);
            match position.kind {
                StateKind::Word => partition.words.lock(position.bucket),
                StateKind::Pair => partition.pairs.lock(position.bucket),
                StateKind::Large => locks.shards.push((position, partition.large.lock(position.bucket))),
            }
            locks.positions.push(position);
        }
        locks
    }
}

impl Drop for Locks<'_> {
    fn drop(&mut self) {
        for position in self.positions.drain(..) {
            let partition = self.store.partition(position.partition);
            match position.kind {
                StateKind::Word => partition.words.unlock(position.bucket),
                StateKind::Pair => partition.pairs.unlock(position.bucket),
                StateKind::Large => {}
            }
        }
    }
}

impl Locks<'_> {
    /// Whether the key still belongs to the locked bucket.
    fn own(&self, item: &Item<'_>) -> bool {
        let partition = self.store.partition(item.position.partition);
        match item.position.kind {
            StateKind::Word => partition.words.owns(item.position.bucket, item.key),
            StateKind::Pair => partition.pairs.owns(item.position.bucket, item.key),
            StateKind::Large => true,
        }
    }

    fn read(&self, item: &Item<'_>) -> HeldState {
        let partition = self.store.partition(item.position.partition);
        match item.position.kind {
            StateKind::Word => HeldState::Word(partition.words.get(item.position.bucket, item.key)),
            StateKind::Pair => HeldState::Pair(partition.pairs.get(item.position.bucket, item.key)),
            StateKind::Large => HeldState::Large,
        }
    }

    fn decide_all(&mut self, items: &mut [Item<'_>], placements: &[Placement]) -> Result<(), StoreFailure> {
        for (item, &placement) in items.iter_mut().zip(placements) {
            if placement == Placement::Nowhere {
                // It denies. An enforced limit then writes nothing at all, and a limit in shadow mode is left
                // out.
                item.has_no_space = true;
                item.outcome = Outcome { limit: item.charge.quota.capacity(), ..FULL_OUTCOME };
                continue;
            }
            item.held = self.read(item);
            item.outcome = self.decide(item, item.charge)?;
        }
        Ok(())
    }

    fn decide(&mut self, item: &mut Item<'_>, charge: &Charge<'_>) -> Result<Outcome, StoreFailure> {
        Ok(match item.held {
            HeldState::Word(entry) => {
                let (keep, outcome) = decide::word(charge, entry, self.now, self.store.origin)?;
                item.keep = keep.map(|entry| HeldState::Word(Some(entry)));
                outcome
            }
            HeldState::Pair(entry) => {
                let (keep, outcome) = decide::pair(charge, entry, self.now, &self.store.walls)?;
                item.keep = keep.map(|entry| HeldState::Pair(Some(entry)));
                outcome
            }
            HeldState::Large => {
                let (position, now) = (item.position, self.now);
                let large = &self.store.partition(position.partition).large;
                let decided = match self.shard(position) {
                    Some(shard) => large.step(shard, item.key, charge, now, &mut item.change)?,
                    None => (FULL_OUTCOME, Source::Full),
                };
                item.has_no_space |= decided.1 == Source::Full;
                decided.0
            }
        })
    }

    fn shard(&mut self, wanted: LockPosition) -> Option<&mut Shard> {
        self.shards.iter_mut().find(|(position, _)| *position == wanted).map(|(_, shard)| &mut **shard)
    }

    /// Undoes the change of a large state.
    fn undo(&mut self, item: &mut Item<'_>) {
        let (now, large) = (self.now, &self.store.partition(item.position.partition).large);
        let LargeChange { undo, .. } = std::mem::take(&mut item.change);
        if undo.is_some()
            && let Some(known) = self.shard(item.position).and_then(|shard| shard.get_mut(&item.key))
        {
            known.undo(item.charge, now, undo);
            large.release_excess(known);
        }
    }

    fn refund(&mut self, item: &mut Item<'_>) -> Result<(), StoreFailure> {
        item.keep = match self.read(item) {
            HeldState::Word(Some(entry)) => Some(HeldState::Word(Some(decide::refund_word(
                item.charge,
                entry,
                self.now,
                self.store.origin,
            )?))),
            HeldState::Pair(Some(entry)) => Some(HeldState::Pair(Some(decide::refund_pair(
                item.charge,
                entry,
                self.now,
                &self.store.walls,
            )?))),
            HeldState::Large => return self.refund_large(item),
            HeldState::Word(None) | HeldState::Pair(None) => None,
        };
        // The key has a slot already, so there is always space.
        let _ = self.write(item);
        Ok(())
    }

    fn refund_large(&mut self, item: &Item<'_>) -> Result<(), StoreFailure> {
        let now = self.now;
        let large = &self.store.partition(item.position.partition).large;
        let Some(shard) = self.shard(item.position) else { return Ok(()) };
        let Some(known) = shard.get_mut(&item.key) else { return Ok(()) };
        known.refund(item.charge, now)?;
        // A state that equals that of a new key, as after a released permit, is removed.
        if large.is_idle(known, now) {
            large.remove(shard, item.key);
        } else {
            large.release_excess(known);
        }
        Ok(())
    }

    /// Answers a denied request. Nothing is charged. Only a clamp after a clock step is written, since
    /// otherwise the whole step would have to pass instead of one interval.
    fn refuse(&mut self, items: &mut [Item<'_>]) -> Result<Answers, StoreFailure> {
        for item in items.iter_mut() {
            let admitted = item.outcome.is_allowed();
            if !admitted && item.keep.is_some() {
                let _ = self.write(item); // A clamped state has its slot, so there is space.
            }
            if admitted {
                self.undo(item);
                let look = Charge { cost: 0, ..*item.charge };
                item.outcome = Outcome { verdict: Verdict::Allow, ..self.decide(item, &look)? };
            }
        }
        Ok(answers(items, self.now))
    }

    /// Writes all changed states. If there is no space for one, restores the others.
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

    /// Restores the state before the transaction.
    fn restore(&mut self, item: &mut Item<'_>) {
        match item.held {
            HeldState::Word(None) | HeldState::Pair(None) => self.remove(item),
            HeldState::Large if item.change.undo.is_none() => self.remove_fresh(item),
            HeldState::Large => self.undo(item),
            held => {
                let _ = self.put(item, held); // It was there a moment ago, under the same lock.
            }
        }
    }

    fn write(&mut self, item: &mut Item<'_>) -> Result<(), Full> {
        if let Some(fresh) = item.change.fresh.take().filter(|_| item.charge.cost > 0) {
            let now = self.now;
            let large = &self.store.partition(item.position.partition).large;
            item.change.is_kept = true;
            return self.shard(item.position).map_or(Ok(()), |shard| large.put(shard, item.key, now, *fresh));
        }
        item.keep.map_or(Ok(()), |held| self.put(item, held))
    }

    fn put(&mut self, item: &Item<'_>, held: HeldState) -> Result<(), Full> {
        let partition = self.store.partition(item.position.partition);
        let (bucket, key) = (item.position.bucket, item.key);
        match held {
            HeldState::Word(Some(entry)) => {
                partition.words.put(bucket, key, self.store.origin.word(self.now), entry)
            }
            HeldState::Pair(Some(entry)) => partition.pairs.put(bucket, key, self.now.unix_micros(), entry),
            HeldState::Word(None) | HeldState::Pair(None) | HeldState::Large => Ok(()),
        }
    }

    /// Removes a large state that this transaction inserted.
    fn remove_fresh(&mut self, item: &Item<'_>) {
        if item.change.is_kept {
            self.remove(item);
        }
    }

    fn remove(&mut self, item: &Item<'_>) {
        let partition = self.store.partition(item.position.partition);
        match item.position.kind {
            StateKind::Word => {
                partition.words.remove(item.position.bucket, item.key);
            }
            StateKind::Pair => {
                partition.pairs.remove(item.position.bucket, item.key);
            }
            StateKind::Large => {
                if let Some(shard) = self.shard(item.position) {
                    partition.large.remove(shard, item.key);
                }
            }
        }
    }
}

fn answers(items: &[Item<'_>], now: Timestamp) -> Answers {
    items
        .iter()
        .map(|item| {
            let source = match item.position.partition {
                _ if item.has_no_space => Source::Full,
                PartitionId::Main => Source::Exact,
                PartitionId::Overflow => Source::Overflow,
            };
            ChargeAnswer::new(item.outcome, source).charged(now)
        })
        .collect()
}
