//! The sharded map of large states: sliding windows, logs and permits, behind ordinary locks, within the
//! budget of the store. The full size of a window or a log is taken when its key is inserted, so a known key
//! is never denied for memory. Permits take memory while they are in flight; part of the budget is reserved
//! for the permits of known keys.

use std::collections::HashMap;
use std::sync::Arc;

use crate::algorithm::{Charged, concurrency, sliding_log, sliding_window};
use crate::key::Fingerprint;
use crate::memory::budget::Budget;
use crate::memory::holds::Holds;
use crate::memory::table::Full;
use crate::memory::{ChargeMode, FULL_OUTCOME};
use crate::outcome::{Outcome, Source};
use crate::quota::Quota;
use crate::store::{Charge, StoreFailure};
use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering};
use crate::time::Timestamp;

mod export;

/// A full map is swept once per this many requests for space.
const SWEEP_EVERY: u64 = 16;
/// The number of shards.
pub(crate) const SHARDS: usize = 64;
/// Bytes of a map entry, with slack for growth.
const ENTRY_BYTES: u64 = 2 * (size_of::<(Fingerprint, LargeEntry)>() as u64 + 8);

/// A large state.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Large {
    Window(sliding_window::State),
    Log(sliding_log::State),
    Permits(concurrency::State),
}

/// An entry of the map.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LargeEntry {
    pub(crate) number: u32,
    pub(crate) idle_at: Timestamp,
    /// Bytes of the budget that were taken for it.
    pub(crate) bytes: u32,
    pub(crate) state: Large,
}

pub(crate) type Shard = HashMap<Fingerprint, LargeEntry>;

/// The sharded map of large states.
pub(crate) struct LargeMap {
    shards: Box<[Mutex<Shard>]>,
    budget: Arc<Budget>,
    sweeps: AtomicU64,
    holds: Holds,
}

impl LargeMap {
    pub(crate) fn new(budget: Arc<Budget>) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::new(HashMap::new())).collect(),
            budget,
            sweeps: AtomicU64::new(0),
            holds: Holds::default(),
        }
    }

    /// Entries that are kept beyond their own expiry.
    pub(crate) const fn holds(&self) -> &Holds {
        &self.holds
    }

    /// Whether a state equals that of a new key.
    pub(crate) fn is_idle(&self, entry: &LargeEntry, now: Timestamp) -> bool {
        self.holds.is_idle(entry.idle_at.unix_micros(), || entry.number, now.unix_micros())
    }

    pub(crate) fn shard_of(key: Fingerprint) -> usize {
        usize::try_from(key.tag % SHARDS as u64).unwrap_or(0)
    }

    /// Locks a shard. Several shards are locked in ascending order, after all table buckets.
    pub(crate) fn lock(&self, shard: usize) -> MutexGuard<'_, Shard> {
        match self.shards[shard].lock() {
            Ok(guard) => guard,
            // The map is consistent after each statement that may panic, so a poisoned shard stays usable.
            Err(poisoned) => poisoned.into_inner(),
        }
    }

    /// Inserts the state of a new key, if the budget allows or idle entries can be evicted.
    pub(crate) fn put(
        &self,
        shard: &mut Shard,
        key: Fingerprint,
        now: Timestamp,
        entry: LargeEntry,
    ) -> Result<(), Full> {
        if !self.take(shard, u64::from(entry.bytes), now) {
            return Err(Full);
        }
        if shard.len() >= 64 && shard.len().is_power_of_two() {
            // Each doubling pays for one sweep, so idle entries never outnumber the others for long.
            self.sweep(shard, now);
        }
        shard.insert(key, entry);
        Ok(())
    }

    /// Charges one counter by itself.
    pub(crate) fn charge(
        &self,
        charge: &Charge<'_>,
        now: Timestamp,
    ) -> Result<Result<SourcedOutcome, StoreFailure>, Full> {
        let mut shard = self.lock(Self::shard_of(charge.key));
        let mut change = LargeChange::default();
        let decided = match self.step(&mut shard, charge.key, charge, now, &mut change) {
            Ok(decided) => decided,
            Err(failure) => return Ok(Err(failure)),
        };
        match change.fresh.take() {
            Some(fresh) if decided.0.is_allowed() && charge.cost > 0 => {
                self.put(&mut shard, charge.key, now, *fresh).map(|()| Ok(decided))
            }
            _ => Ok(Ok(decided)),
        }
    }

    /// Whether the map has the key, or space for one unit of it.
    pub(crate) fn has_space(&self, charge: &Charge<'_>, now: Timestamp) -> bool {
        let mut shard = self.lock(Self::shard_of(charge.key));
        if shard.contains_key(&charge.key) {
            return true;
        }
        let Ok(mut fresh) = LargeEntry::new(charge) else { return true };
        let _ = fresh.charge(&charge.costing(1), now); // Only its size matters.
        let bytes = u64::from(fresh.bytes.max(fresh.state.bytes()));
        if self.budget.fits_unreserved(bytes) {
            return true;
        }
        self.sweep(&mut shard, now);
        self.budget.fits_unreserved(bytes)
    }

    /// Charges one counter by itself in another [`ChargeMode`].
    pub(crate) fn ask(
        &self,
        charge: &Charge<'_>,
        demand: ChargeMode,
        now: Timestamp,
    ) -> Result<Result<SourcedOutcome, StoreFailure>, Full> {
        let mut shard = self.lock(Self::shard_of(charge.key));
        let mut change = LargeChange::default();
        let mut step = |shard: &mut Shard, cost| {
            self.step(shard, charge.key, &charge.costing(cost), now, &mut change)
                .map(|decided| (cost, decided))
        };
        let asked = match demand {
            ChargeMode::UpTo(left) => step(&mut shard, 0).and_then(|(_, (look, _))| {
                step(&mut shard, charge.cost.min(look.remaining.saturating_sub(left)))
            }),
            // A large state admits its cost or not; it has no slack to check.
            ChargeMode::If(_) => step(&mut shard, charge.cost),
            ChargeMode::Would(units) => step(&mut shard, units),
        };
        let (taken, decided) = match asked {
            Ok(asked) => asked,
            Err(failure) => return Ok(Err(failure)),
        };
        if matches!(demand, ChargeMode::Would(_)) {
            if let Some(known) = shard.get_mut(&charge.key).filter(|_| change.undo.is_some()) {
                known.undo(&charge.costing(taken), now, change.undo.take());
                self.release_excess(known);
            }
            return Ok(Ok(decided));
        }
        match change.fresh.take() {
            Some(fresh) if decided.0.is_allowed() && taken > 0 => {
                self.put(&mut shard, charge.key, now, *fresh).map(|()| Ok(decided))
            }
            _ => Ok(Ok(decided)),
        }
    }

    /// Charges the state of a key in place, or creates a new one to insert. The change can be undone.
    pub(crate) fn step(
        &self,
        shard: &mut Shard,
        key: Fingerprint,
        charge: &Charge<'_>,
        now: Timestamp,
        change: &mut LargeChange,
    ) -> Result<SourcedOutcome, StoreFailure> {
        let Some(known) = shard.get_mut(&key) else {
            let mut fresh = Box::new(LargeEntry::new(charge)?);
            let outcome = fresh.charge(charge, now)?.0;
            fresh.bytes = fresh.bytes.max(fresh.state.bytes());
            change.fresh = Some(fresh);
            return Ok((outcome, Source::Exact));
        };
        let (outcome, undo) = known.charge(charge, now)?;
        // Another permit, or a quota raised by a policy swap, may outgrow the bytes taken.
        let missing = known.state.bytes().saturating_sub(known.bytes);
        if missing > 0 {
            let bytes = u64::from(missing);
            let is_taken = match known.state {
                Large::Permits(_) => self.budget.take_reserve(bytes),
                Large::Window(_) | Large::Log(_) => self.budget.take_unreserved(bytes),
            };
            if !is_taken {
                known.undo(charge, now, undo);
                self.release_excess(known);
                return Ok((Outcome { limit: charge.quota.capacity(), ..FULL_OUTCOME }, Source::Full));
            }
            known.bytes += missing;
        }
        self.release_excess(known);
        change.undo = undo;
        Ok((outcome, Source::Exact))
    }

    /// Returns the bytes that permits no longer need. Windows and logs keep their maximum size.
    pub(crate) fn release_excess(&self, known: &mut LargeEntry) {
        if matches!(known.state, Large::Permits(_)) {
            let excess = known.bytes.saturating_sub(known.state.bytes());
            known.bytes -= excess;
            self.budget.give(u64::from(excess));
        }
    }

    /// Takes bytes of the budget, if needed by evicting idle entries.
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

    /// Sweeps all unlocked shards, but only in some of the calls, since each new key asks a full map for
    /// space.
    fn sweep_others(&self, now: Timestamp) {
        // Relaxed: the number only distributes the work.
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
        shard.retain(|_, entry| {
            let keep = !self.is_idle(entry, now);
            if !keep {
                self.budget.give(u64::from(entry.bytes));
            }
            keep
        });
    }

    /// Entries that are not idle. For reports.
    pub(crate) fn count(&self, now: Timestamp) -> u64 {
        (0..SHARDS)
            .map(|shard| self.lock(shard).values().filter(|entry| !self.is_idle(entry, now)).count() as u64)
            .sum()
    }
}

/// An outcome, and whether the counter itself decided it.
pub(crate) type SourcedOutcome = (Outcome, Source);

/// The change by a charge, until it is known whether it is kept.
#[derive(Debug, Default)]
pub(crate) struct LargeChange {
    /// The state of a new key, not yet inserted.
    pub(crate) fresh: Option<Box<LargeEntry>>,
    /// How to undo the change of an existing state.
    pub(crate) undo: Option<Undo>,
    /// Whether the new state was inserted.
    pub(crate) is_kept: bool,
}

/// How to undo a charge. Logs and permits know their last charge; a window is small enough to be copied.
#[derive(Debug)]
pub(crate) enum Undo {
    Units,
    Window(Box<sliding_window::State>),
}

impl LargeEntry {
    /// The state of a new key.
    fn new(charge: &Charge<'_>) -> Result<Self, StoreFailure> {
        let state = Large::default_of(charge.quota)?;
        let bytes = match charge.quota {
            Quota::Concurrency(_) => state.bytes(),
            other => u32::try_from(state_bytes(other)).unwrap_or(u32::MAX),
        };
        Ok(Self { number: charge.number, idle_at: Timestamp::default(), bytes, state })
    }

    /// Charges the state, after converting it from another quota if needed.
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

    /// Undoes a charge just made.
    pub(crate) fn undo(&mut self, charge: &Charge<'_>, now: Timestamp, undo: Option<Undo>) {
        match (undo, charge.quota, &mut self.state) {
            (Some(Undo::Window(before)), _, Large::Window(state)) => *state = *before,
            (Some(Undo::Units), Quota::SlidingLog(quota), Large::Log(state)) => {
                // It was the latest, even if the clock stepped back.
                let latest = Charged::At(Timestamp::MAX);
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

    /// Refunds a charge under the quota that counted it.
    pub(crate) fn refund(&mut self, charge: &Charge<'_>, now: Timestamp) -> Result<(), StoreFailure> {
        let Some(record) = charge.family.record(self.number) else {
            return if self.idle_at <= now { Ok(()) } else { Err(StoreFailure::Superseded) };
        };
        let (at, charged) = (record.latest(now), charge.charged);
        match (&record.quota, &mut self.state) {
            (Quota::SlidingWindow(quota), Large::Window(state)) => {
                let refund = |state| sliding_window::refund(quota, state, at, charge.cost, charged);
                in_place(state, |state| (refund(state), ()));
            }
            (Quota::SlidingLog(quota), Large::Log(state)) => {
                let refund = |state| sliding_log::refund(quota, state, at, charge.cost, charged);
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

    /// Records a permit that was granted elsewhere.
    pub(crate) fn record_permit(&mut self, charge: &Charge<'_>, now: Timestamp) -> Result<(), StoreFailure> {
        self.carry_over(charge, now)?;
        let (Quota::Concurrency(quota), Large::Permits(state)) = (charge.quota, &mut self.state) else {
            return Err(StoreFailure::WrongKind);
        };
        in_place(state, |state| (concurrency::take_note(quota, state, now, charge.permit, charge.cost), ()));
        self.idle_at = self.state.idle_at(charge.quota);
        Ok(())
    }

    /// Renews the permit of a charge for the lifetime of the charge's quota.
    pub(crate) fn renew(&mut self, charge: &Charge<'_>, now: Timestamp) -> Result<(), StoreFailure> {
        let (Quota::Concurrency(quota), Large::Permits(state)) = (charge.quota, &mut self.state) else {
            return Err(StoreFailure::WrongKind);
        };
        in_place(state, |state| concurrency::renew(quota, state, now, charge.permit));
        self.idle_at = self.state.idle_at(charge.quota);
        Ok(())
    }

    /// Converts the state to the charge's quota: a new state if it is idle, else converted from the other
    /// quota.
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

/// Applies a pure step to a state in place.
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

    /// The instant from which it equals that of a new key, under one quota.
    fn idle_at(&self, quota: &Quota) -> Timestamp {
        match (quota, self) {
            (Quota::SlidingWindow(quota), Large::Window(state)) => sliding_window::idle_at(quota, state),
            (Quota::SlidingLog(quota), Large::Log(state)) => sliding_log::idle_at(quota, state),
            (Quota::Concurrency(quota), Large::Permits(state)) => concurrency::idle_at(quota, state),
            _ => Timestamp::default(),
        }
    }

    /// The bytes of the state and its map entry.
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
/// An entry of a log; a vector may have twice the capacity that it uses.
const LOG_BYTES: u64 = 2 * size_of::<(Timestamp, u64)>() as u64;

/// The maximum bytes of one key of a quota; 0 for small states, which live in the tables. A key of a
/// concurrency limit takes this with all permits in flight, and [`ENTRY_BYTES`] with one.
pub(crate) fn state_bytes(quota: &Quota) -> u64 {
    match quota {
        Quota::SlidingWindow(quota) => ENTRY_BYTES + (u64::from(quota.precision()) + 1) * WINDOW_BYTES,
        Quota::SlidingLog(quota) => ENTRY_BYTES + quota.limit() * LOG_BYTES,
        Quota::Concurrency(quota) => ENTRY_BYTES + concurrency::heap_bytes_max(quota),
        _ => 0,
    }
}
