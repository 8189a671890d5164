//! The shelf of large states: sliding windows, logs and permits, in shards behind ordinary locks. Bounded by the same budget
//! as the tables: a key's whole possible size is taken when the key is first kept, so a known key is never refused for memory.

use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;
use std::sync::Arc;

use crate::algorithm::concurrency::{self, Concurrency};
use crate::algorithm::sliding_log::{self, SlidingLog};
use crate::algorithm::sliding_window::{self, SlidingWindow};
use crate::charge::{Charge, Record};
use crate::key::Fingerprint;
use crate::memory::decide::Step;
use crate::memory::region::Budget;
use crate::memory::table::Full;
use crate::quota::Quota;
use crate::store::StoreFailure;
use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering};
use crate::time::Timestamp;

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
    pub(crate) bytes: u64,
    pub(crate) state: Large,
}

type Shard = HashMap<Fingerprint, Shelved>;

/// The sharded map.
pub(crate) struct Shelf {
    shards: Box<[Mutex<Shard>]>,
    budget: Arc<Budget>,
    sweeps: AtomicU64,
}

impl Shelf {
    pub(crate) fn new(budget: Arc<Budget>) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::new(HashMap::new())).collect(),
            budget,
            sweeps: AtomicU64::new(0),
        }
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

    /// Keeps a state: in its own place, else where an idle one was, else if the budget allows.
    pub(crate) fn put(
        &self,
        shard: &mut Shard,
        key: Fingerprint,
        now: Timestamp,
        shelved: Shelved,
    ) -> Result<(), Full> {
        if let Slot::Occupied(mut known) = shard.entry(key) {
            // What was taken for the key stays taken; a raised quota may let it outgrow that, by at most the raise.
            let bytes = known.get().bytes;
            known.insert(Shelved { bytes, ..shelved });
            return Ok(());
        }
        if !self.budget.take(shelved.bytes) {
            self.sweep(shard, now);
            if !self.budget.take(shelved.bytes) {
                self.sweep_others(now);
                if !self.budget.take(shelved.bytes) {
                    return Err(Full);
                }
            }
        } else if shard.len() >= 64 && shard.len().is_power_of_two() {
            // Each doubling pays for one look at everything, so idle states never outnumber the live for long.
            self.sweep(shard, now);
        }
        shard.insert(key, shelved);
        Ok(())
    }

    pub(crate) fn remove(&self, shard: &mut Shard, key: Fingerprint) -> bool {
        shard.remove(&key).inspect(|gone| self.budget.give(gone.bytes)).is_some()
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
            let keep = shelved.idle_at > now;
            if !keep {
                self.budget.give(shelved.bytes);
            }
            keep
        });
    }

    /// States that still matter. For reports.
    pub(crate) fn count(&self, now: Timestamp) -> u64 {
        (0..SHARDS)
            .map(|shard| self.lock(shard).values().filter(|shelved| shelved.idle_at > now).count() as u64)
            .sum()
    }
}

/// Decides about a large state, as [`crate::memory::decide`] does about small ones.
pub(crate) fn decide(charge: &Charge<'_>, held: Option<&Shelved>, now: Timestamp) -> Step<Shelved> {
    let held = held.filter(|shelved| shelved.idle_at > now);
    let before = current(charge, held, now)?;
    let (next, outcome) = match (charge.quota, before.clone()) {
        (Quota::SlidingWindow(quota), Large::Window(state)) => {
            let (state, outcome) = sliding_window::charge(quota, state, now, charge.cost);
            (Large::Window(state), outcome)
        }
        (Quota::SlidingLog(quota), Large::Log(state)) => {
            let (state, outcome) = sliding_log::charge(quota, state, now, charge.cost);
            (Large::Log(state), outcome)
        }
        (Quota::Concurrency(quota), Large::Permits(state)) => {
            let (state, outcome) = concurrency::charge(quota, state, now, charge.cost, charge.permit);
            (Large::Permits(state), outcome)
        }
        _ => return Err(StoreFailure::WrongKind),
    };
    let admitted = outcome.is_allowed() && charge.cost > 0;
    let carried_over = held.is_some_and(|shelved| shelved.number != charge.number);
    // Without an admission only a clamp changes a state, and it is kept: otherwise a step of the clock, and not one window,
    // would have to pass.
    let keep = next != before || (admitted && carried_over);
    Ok((if keep { Some(shelve(charge.quota, charge.number, next)?) } else { None }, outcome))
}

/// The state after giving back what the charge took, still counted under the quota that it has.
pub(crate) fn refund(charge: &Charge<'_>, held: &Shelved, now: Timestamp) -> Result<Shelved, StoreFailure> {
    let record = charge.family.record(held.number).ok_or(StoreFailure::Superseded)?;
    let next = match (&record.quota, held.state.clone()) {
        (Quota::SlidingWindow(quota), Large::Window(state)) => {
            Large::Window(sliding_window::refund(quota, state, now, charge.cost))
        }
        (Quota::SlidingLog(quota), Large::Log(state)) => {
            Large::Log(sliding_log::refund(quota, state, now, charge.cost))
        }
        (Quota::Concurrency(quota), Large::Permits(state)) => {
            Large::Permits(concurrency::release(quota, state, now, charge.permit).0)
        }
        _ => return Err(StoreFailure::WrongKind),
    };
    shelve(&record.quota, held.number, next)
}

/// The state as the charge's quota sees it: new, as kept, or carried over from another quota.
fn current(charge: &Charge<'_>, held: Option<&Shelved>, now: Timestamp) -> Result<Large, StoreFailure> {
    let Some(held) = held else {
        return match charge.quota {
            Quota::SlidingWindow(_) => Ok(Large::Window(sliding_window::State::default())),
            Quota::SlidingLog(_) => Ok(Large::Log(sliding_log::State::default())),
            Quota::Concurrency(_) => Ok(Large::Permits(concurrency::State::default())),
            _ => Err(StoreFailure::WrongKind),
        };
    };
    if held.number == charge.number {
        return Ok(held.state.clone());
    }
    let record = charge.family.record(held.number).ok_or(StoreFailure::Superseded)?;
    inherit(charge.quota, record, held.state.clone(), now)
}

fn inherit(quota: &Quota, record: &Record, state: Large, now: Timestamp) -> Result<Large, StoreFailure> {
    let at = record.retired_at.map_or(now, |retired| retired.min(now));
    match (quota, &record.quota, state) {
        (Quota::SlidingWindow(quota), Quota::SlidingWindow(old), Large::Window(state)) => {
            Ok(Large::Window(sliding_window::inherit(quota, old, state, at)))
        }
        (Quota::SlidingLog(quota), Quota::SlidingLog(old), Large::Log(state)) => {
            Ok(Large::Log(sliding_log::inherit(quota, old, state, at)))
        }
        (Quota::Concurrency(quota), Quota::Concurrency(old), Large::Permits(state)) => {
            Ok(Large::Permits(concurrency::inherit(quota, old, state, at)))
        }
        _ => Err(StoreFailure::WrongKind),
    }
}

fn shelve(quota: &Quota, number: u32, state: Large) -> Result<Shelved, StoreFailure> {
    let (idle_at, heap) = match (quota, &state) {
        (Quota::SlidingWindow(quota), Large::Window(state)) => {
            (sliding_window::idle_at(quota, state), window_bytes(quota))
        }
        (Quota::SlidingLog(quota), Large::Log(state)) => {
            (sliding_log::idle_at(quota, state), log_bytes(quota))
        }
        (Quota::Concurrency(quota), Large::Permits(state)) => {
            (concurrency::idle_at(quota, state), permit_bytes(quota))
        }
        _ => return Err(StoreFailure::WrongKind),
    };
    Ok(Shelved { number, idle_at, bytes: ENTRY_BYTES + heap, state })
}

/// Bytes that are taken for one key of a quota; none for small states, which live in the tables.
pub(crate) fn state_bytes(quota: &Quota) -> u64 {
    match quota {
        Quota::SlidingWindow(quota) => ENTRY_BYTES + window_bytes(quota),
        Quota::SlidingLog(quota) => ENTRY_BYTES + log_bytes(quota),
        Quota::Concurrency(quota) => ENTRY_BYTES + permit_bytes(quota),
        _ => 0,
    }
}

fn window_bytes(quota: &SlidingWindow) -> u64 {
    (u64::from(quota.precision()) + 1) * 8
}

/// A vector may have twice the room that it uses.
fn log_bytes(quota: &SlidingLog) -> u64 {
    quota.limit() * 2 * size_of::<(Timestamp, u64)>() as u64
}

fn permit_bytes(quota: &Concurrency) -> u64 {
    quota.limit() * 2 * 24
}
