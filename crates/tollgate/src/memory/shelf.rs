//! The shelf of large states: sliding windows, logs and permits, in shards behind ordinary locks. Bounded by the same budget
//! as the tables. The whole possible size of a window or a log is taken when its key is first kept, so a known key is never refused
//! for memory. Permits take memory for what is in flight; a part of the budget is kept from new keys, so that known keys find room
//! for more of them.

use std::collections::HashMap;
use std::sync::Arc;

use crate::algorithm::{concurrency, sliding_log, sliding_window};
use crate::charge::Charge;
use crate::decision::Source;
use crate::key::Fingerprint;
use crate::memory::holds::Holds;
use crate::memory::region::Budget;
use crate::memory::table::Full;
use crate::memory::{Demand, NO_ROOM};
use crate::outcome::Outcome;
use crate::quota::Quota;
use crate::store::StoreFailure;
use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering};
use crate::time::Timestamp;

mod walk;

/// A full shelf is swept whole once in so many requests for room.
const SWEEP_EVERY: u64 = 16;
/// Shards of the shelf.
pub(crate) const SHARDS: usize = 64;
/// Bytes that the map itself takes for an entry, with slack for its growth.
const ENTRY_BYTES: u64 = 2 * (size_of::<(Fingerprint, Shelved)>() as u64 + 8);

/// A large state.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Large {
    Window(sliding_window::State),
    Log(sliding_log::State),
    Permits(concurrency::State),
}

/// A large state as it is kept.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Shelved {
    pub(crate) number: u32,
    pub(crate) idle_at: Timestamp,
    /// Bytes of the budget that were taken for it.
    pub(crate) bytes: u32,
    pub(crate) state: Large,
}

pub(crate) type Shard = HashMap<Fingerprint, Shelved>;

/// The sharded map.
pub(crate) struct Shelf {
    shards: Box<[Mutex<Shard>]>,
    budget: Arc<Budget>,
    sweeps: AtomicU64,
    holds: Holds,
}

impl Shelf {
    pub(crate) fn new(budget: Arc<Budget>) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::new(HashMap::new())).collect(),
            budget,
            sweeps: AtomicU64::new(0),
            holds: Holds::default(),
        }
    }

    /// States that are kept longer than they say.
    pub(crate) const fn holds(&self) -> &Holds {
        &self.holds
    }

    /// Whether a state equals absence.
    pub(crate) fn is_idle(&self, shelved: &Shelved, now: Timestamp) -> bool {
        self.holds.is_idle(shelved.idle_at.unix_micros(), || shelved.number, now.unix_micros())
    }

    pub(crate) fn shard_of(key: Fingerprint) -> usize {
        usize::try_from(key.tag % SHARDS as u64).unwrap_or(0)
    }

    /// Locks a shard. Whoever locks several does so in ascending order, after all table buckets.
    pub(crate) fn lock(&self, shard: usize) -> MutexGuard<'_, Shard> {
        match self.shards[shard].lock() {
            Ok(guard) => guard,
            // The map is consistent after every statement that could panic, so a poisoned shard is still usable.
            Err(poisoned) => poisoned.into_inner(),
        }
    }

    /// Keeps the state of a key that has none: where an idle one was, else if the budget allows.
    pub(crate) fn put(
        &self,
        shard: &mut Shard,
        key: Fingerprint,
        now: Timestamp,
        shelved: Shelved,
    ) -> Result<(), Full> {
        if !self.take(shard, u64::from(shelved.bytes), now) {
            return Err(Full);
        }
        if shard.len() >= 64 && shard.len().is_power_of_two() {
            // Each doubling pays for one look at everything, so idle states never outnumber the live for long.
            self.sweep(shard, now);
        }
        shard.insert(key, shelved);
        Ok(())
    }

    /// Decides about a key that needs no other.
    pub(crate) fn charge(
        &self,
        charge: &Charge<'_>,
        now: Timestamp,
    ) -> Result<Result<Told, StoreFailure>, Full> {
        let mut shard = self.lock(Self::shard_of(charge.key));
        let mut change = Change::default();
        let told = match self.step(&mut shard, charge.key, charge, now, &mut change) {
            Ok(told) => told,
            Err(failure) => return Ok(Err(failure)),
        };
        match change.fresh.take() {
            Some(fresh) if told.0.is_allowed() && charge.cost > 0 => {
                self.put(&mut shard, charge.key, now, *fresh).map(|()| Ok(told))
            }
            _ => Ok(Ok(told)),
        }
    }

    /// Asks a key that needs no other in another way than a charge does.
    pub(crate) fn ask(
        &self,
        charge: &Charge<'_>,
        demand: Demand,
        now: Timestamp,
    ) -> Result<Result<Told, StoreFailure>, Full> {
        let mut shard = self.lock(Self::shard_of(charge.key));
        let mut change = Change::default();
        let mut step = |shard: &mut Shard, cost| {
            self.step(shard, charge.key, &charge.costing(cost), now, &mut change).map(|told| (cost, told))
        };
        let asked = match demand {
            Demand::UpTo(left) => step(&mut shard, 0).and_then(|(_, (look, _))| {
                step(&mut shard, charge.cost.min(look.remaining.saturating_sub(left)))
            }),
            // What is large has no room beside its share, so it would admit what it admits.
            Demand::If(_) => step(&mut shard, charge.cost),
            Demand::Would(units) => step(&mut shard, units),
        };
        let (taken, told) = match asked {
            Ok(asked) => asked,
            Err(failure) => return Ok(Err(failure)),
        };
        if matches!(demand, Demand::Would(_)) {
            if let Some(known) = shard.get_mut(&charge.key).filter(|_| change.undo.is_some()) {
                known.undo(&charge.costing(taken), now, change.undo.take());
                self.give_spare(known);
            }
            return Ok(Ok(told));
        }
        match change.fresh.take() {
            Some(fresh) if told.0.is_allowed() && taken > 0 => {
                self.put(&mut shard, charge.key, now, *fresh).map(|()| Ok(told))
            }
            _ => Ok(Ok(told)),
        }
    }

    /// Charges a key's state where it is, or makes a new one to be put there. What it did can be undone.
    pub(crate) fn step(
        &self,
        shard: &mut Shard,
        key: Fingerprint,
        charge: &Charge<'_>,
        now: Timestamp,
        change: &mut Change,
    ) -> Result<Told, StoreFailure> {
        let Some(known) = shard.get_mut(&key) else {
            let mut fresh = Box::new(Shelved::new(charge)?);
            let outcome = fresh.charge(charge, now)?.0;
            fresh.bytes = fresh.bytes.max(fresh.state.bytes());
            change.fresh = Some(fresh);
            return Ok((outcome, Source::Exact));
        };
        let (outcome, undo) = known.charge(charge, now)?;
        // One permit more, or a quota raised by a swap, may let a state outgrow what was taken for it.
        let missing = known.state.bytes().saturating_sub(known.bytes);
        if missing > 0 {
            let bytes = u64::from(missing);
            let is_taken = match known.state {
                Large::Permits(_) => self.budget.take_reserve(bytes),
                Large::Window(_) | Large::Log(_) => self.budget.take_unreserved(bytes),
            };
            if !is_taken {
                known.undo(charge, now, undo);
                self.give_spare(known);
                return Ok((Outcome { limit: charge.quota.capacity(), ..NO_ROOM }, Source::Full));
            }
            known.bytes += missing;
        }
        self.give_spare(known);
        change.undo = undo;
        Ok((outcome, Source::Exact))
    }

    /// Gives back the bytes that permits no longer need. Windows and logs keep what was taken for all that they may become.
    pub(crate) fn give_spare(&self, known: &mut Shelved) {
        if matches!(known.state, Large::Permits(_)) {
            let spare = known.bytes.saturating_sub(known.state.bytes());
            known.bytes -= spare;
            self.budget.give(u64::from(spare));
        }
    }

    /// Takes bytes of the budget, if need be from states that are idle.
    fn take(&self, shard: &mut Shard, bytes: u64, now: Timestamp) -> bool {
        if self.budget.take_unreserved(bytes) {
            return true;
        }
        self.sweep(shard, now);
        if self.budget.take_unreserved(bytes) {
            return true;
        }
        self.sweep_others(now);
        self.budget.take_unreserved(bytes)
    }

    pub(crate) fn remove(&self, shard: &mut Shard, key: Fingerprint) -> bool {
        shard.remove(&key).inspect(|gone| self.budget.give(u64::from(gone.bytes))).is_some()
    }

    /// Sweeps the shards that nobody holds, one in some calls: a full shelf is asked for room by every new key.
    fn sweep_others(&self, now: Timestamp) {
        // Relaxed: the number only spreads the work.
        let turn = self.sweeps.fetch_add(1, Ordering::Relaxed);
        if !turn.is_multiple_of(SWEEP_EVERY) {
            return;
        }
        for shard in &self.shards {
            if let Ok(mut shard) = shard.try_lock() {
                self.sweep(&mut shard, now);
            }
        }
    }

    fn sweep(&self, shard: &mut Shard, now: Timestamp) {
        shard.retain(|_, shelved| {
            let keep = !self.is_idle(shelved, now);
            if !keep {
                self.budget.give(u64::from(shelved.bytes));
            }
            keep
        });
    }

    /// States that still matter. For reports.
    pub(crate) fn count(&self, now: Timestamp) -> u64 {
        (0..SHARDS)
            .map(|shard| {
                self.lock(shard).values().filter(|shelved| !self.is_idle(shelved, now)).count() as u64
            })
            .sum()
    }
}

/// What a state said, and whether it is the counter itself that said so.
pub(crate) type Told = (Outcome, Source);

/// What a charge did to the shelf, until it is known whether it counts.
#[derive(Debug, Default)]
pub(crate) struct Change {
    /// The state of a key that had none; it is not on the shelf yet.
    pub(crate) fresh: Option<Box<Shelved>>,
    /// How to take back what was done to one that had.
    pub(crate) undo: Option<Undo>,
    /// The new state has been put on the shelf.
    pub(crate) is_kept: bool,
}

/// How a charge is taken back. Logs and permits know what was last; a window is small enough to be kept.
#[derive(Debug)]
pub(crate) enum Undo {
    Units,
    Window(Box<sliding_window::State>),
}

impl Shelved {
    /// The state of a key never seen.
    fn new(charge: &Charge<'_>) -> Result<Self, StoreFailure> {
        let state = Large::default_of(charge.quota)?;
        let bytes = match charge.quota {
            Quota::Concurrency(_) => state.bytes(),
            other => u32::try_from(state_bytes(other)).unwrap_or(u32::MAX),
        };
        Ok(Self { number: charge.number, idle_at: Timestamp::default(), bytes, state })
    }

    /// Charges the state, carried over first if it was counted under another quota.
    fn charge(
        &mut self,
        charge: &Charge<'_>,
        now: Timestamp,
    ) -> Result<(Outcome, Option<Undo>), StoreFailure> {
        self.carry_over(charge, now)?;
        let is_window = matches!(self.state, Large::Window(_));
        let before = if is_window { Some(self.state.clone()) } else { None };
        let outcome = match (charge.quota, &mut self.state) {
            (Quota::SlidingWindow(quota), Large::Window(state)) => {
                in_place(state, |state| sliding_window::charge(quota, state, now, charge.cost))
            }
            (Quota::SlidingLog(quota), Large::Log(state)) => {
                in_place(state, |state| sliding_log::charge(quota, state, now, charge.cost))
            }
            (Quota::Concurrency(quota), Large::Permits(state)) => {
                in_place(state, |state| concurrency::charge(quota, state, now, charge.cost, charge.permit))
            }
            _ => return Err(StoreFailure::WrongKind),
        };
        self.idle_at = self.state.idle_at(charge.quota);
        let undo = match before {
            _ if charge.cost == 0 || !outcome.is_allowed() => None,
            Some(Large::Window(before)) => Some(Undo::Window(Box::new(before))),
            _ => Some(Undo::Units),
        };
        Ok((outcome, undo))
    }

    /// Takes back a charge just made.
    pub(crate) fn undo(&mut self, charge: &Charge<'_>, now: Timestamp, undo: Option<Undo>) {
        match (undo, charge.quota, &mut self.state) {
            (Some(Undo::Window(before)), _, Large::Window(state)) => *state = *before,
            (Some(Undo::Units), Quota::SlidingLog(quota), Large::Log(state)) => {
                // It was the latest, wherever a clock that stepped back has left it.
                let latest = Some(Timestamp::MAX);
                in_place(state, |state| (sliding_log::refund(quota, state, now, charge.cost, latest), ()));
            }
            (Some(Undo::Units), Quota::Concurrency(quota), Large::Permits(state)) => {
                in_place(state, |state| {
                    (concurrency::refund(quota, state, now, charge.permit, charge.cost), ())
                });
            }
            _ => {}
        }
        self.idle_at = self.state.idle_at(charge.quota);
    }

    /// Gives back what the charge took, still counted under the quota that it has.
    pub(crate) fn refund(&mut self, charge: &Charge<'_>, now: Timestamp) -> Result<(), StoreFailure> {
        let Some(record) = charge.family.record(self.number) else {
            return if self.idle_at <= now { Ok(()) } else { Err(StoreFailure::Superseded) };
        };
        let (at, charged_at) = (record.latest(now), charge.charged_at);
        match (&record.quota, &mut self.state) {
            (Quota::SlidingWindow(quota), Large::Window(state)) => {
                let refund = |state| sliding_window::refund(quota, state, at, charge.cost, charged_at);
                in_place(state, |state| (refund(state), ()));
            }
            (Quota::SlidingLog(quota), Large::Log(state)) => {
                let refund = |state| sliding_log::refund(quota, state, at, charge.cost, charged_at);
                in_place(state, |state| (refund(state), ()));
            }
            (Quota::Concurrency(quota), Large::Permits(state)) => {
                in_place(state, |state| concurrency::release(quota, state, now, charge.permit));
            }
            _ => return Err(StoreFailure::WrongKind),
        }
        self.idle_at = self.state.idle_at(&record.quota);
        Ok(())
    }

    /// Takes note of the permit of a charge, which was given elsewhere.
    pub(crate) fn take_note(&mut self, charge: &Charge<'_>, now: Timestamp) -> Result<(), StoreFailure> {
        self.carry_over(charge, now)?;
        let (Quota::Concurrency(quota), Large::Permits(state)) = (charge.quota, &mut self.state) else {
            return Err(StoreFailure::WrongKind);
        };
        in_place(state, |state| (concurrency::take_note(quota, state, now, charge.permit, charge.cost), ()));
        self.idle_at = self.state.idle_at(charge.quota);
        Ok(())
    }

    /// Lets the permit of a charge live anew, for as long as the charge's quota says.
    pub(crate) fn renew(&mut self, charge: &Charge<'_>, now: Timestamp) -> Result<(), StoreFailure> {
        let (Quota::Concurrency(quota), Large::Permits(state)) = (charge.quota, &mut self.state) else {
            return Err(StoreFailure::WrongKind);
        };
        in_place(state, |state| concurrency::renew(quota, state, now, charge.permit));
        self.idle_at = self.state.idle_at(charge.quota);
        Ok(())
    }

    /// Makes the state what the charge's quota sees: new if it is idle, or carried over from another quota.
    fn carry_over(&mut self, charge: &Charge<'_>, now: Timestamp) -> Result<(), StoreFailure> {
        if self.number == charge.number {
            if self.idle_at <= now {
                self.state = Large::default_of(charge.quota)?;
            }
            return Ok(());
        }
        match charge.family.successions(self.number, charge.number, now) {
            Some(steps) => steps
                .iter()
                .filter(|step| step.from != step.to)
                .try_for_each(|step| self.state.inherit(step.to, step.from, step.at))?,
            None if self.idle_at <= now => self.state = Large::default_of(charge.quota)?,
            None => return Err(StoreFailure::Superseded),
        }
        self.number = charge.number;
        Ok(())
    }
}

/// Runs a pure step on a state where it is.
fn in_place<S: Default, R>(state: &mut S, step: impl FnOnce(S) -> (S, R)) -> R {
    let (next, answer) = step(std::mem::take(state));
    *state = next;
    answer
}

impl Large {
    fn default_of(quota: &Quota) -> Result<Self, StoreFailure> {
        match quota {
            Quota::SlidingWindow(_) => Ok(Large::Window(sliding_window::State::default())),
            Quota::SlidingLog(_) => Ok(Large::Log(sliding_log::State::default())),
            Quota::Concurrency(_) => Ok(Large::Permits(concurrency::State::default())),
            _ => Err(StoreFailure::WrongKind),
        }
    }

    fn inherit(&mut self, quota: &Quota, old: &Quota, at: Timestamp) -> Result<(), StoreFailure> {
        match (quota, old, self) {
            (Quota::SlidingWindow(quota), Quota::SlidingWindow(old), Large::Window(state)) => {
                in_place(state, |state| (sliding_window::inherit(quota, old, state, at), ()));
            }
            (Quota::SlidingLog(quota), Quota::SlidingLog(old), Large::Log(state)) => {
                in_place(state, |state| (sliding_log::inherit(quota, old, state, at), ()));
            }
            (Quota::Concurrency(quota), Quota::Concurrency(old), Large::Permits(state)) => {
                in_place(state, |state| (concurrency::inherit(quota, old, state, at), ()));
            }
            _ => return Err(StoreFailure::WrongKind),
        }
        Ok(())
    }

    /// From when on it equals that of a key never seen, by one quota.
    fn idle_at(&self, quota: &Quota) -> Timestamp {
        match (quota, self) {
            (Quota::SlidingWindow(quota), Large::Window(state)) => sliding_window::idle_at(quota, state),
            (Quota::SlidingLog(quota), Large::Log(state)) => sliding_log::idle_at(quota, state),
            (Quota::Concurrency(quota), Large::Permits(state)) => concurrency::idle_at(quota, state),
            _ => Timestamp::default(),
        }
    }

    /// The bytes that it takes, with the map's.
    fn bytes(&self) -> u32 {
        let bytes = ENTRY_BYTES
            + match self {
                Large::Window(state) => state.len() as u64 * WINDOW_BYTES,
                Large::Log(state) => state.len() as u64 * LOG_BYTES,
                Large::Permits(state) => state.heap_bytes(),
            };
        u32::try_from(bytes).unwrap_or(u32::MAX)
    }
}

/// A sub-window's count.
const WINDOW_BYTES: u64 = 8;
/// An entry of a log; a vector may have twice the room that it uses.
const LOG_BYTES: u64 = 2 * size_of::<(Timestamp, u64)>() as u64;

/// Most bytes that one key of a quota takes; none for small states, which live in the tables. A key of a concurrency limit takes
/// so many with all of its permits in flight, and [`ENTRY_BYTES`] with one.
pub(crate) fn state_bytes(quota: &Quota) -> u64 {
    match quota {
        Quota::SlidingWindow(quota) => ENTRY_BYTES + (u64::from(quota.precision()) + 1) * WINDOW_BYTES,
        Quota::SlidingLog(quota) => ENTRY_BYTES + quota.limit() * LOG_BYTES,
        Quota::Concurrency(quota) => ENTRY_BYTES + concurrency::heap_bytes_max(quota),
        _ => 0,
    }
}
