//! The sharded map of all leased keys.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::cell::{Cell, Drained, Unspent};
use super::hot_keys::{HOT_THRESHOLD, HotKeySketch};
use super::thread_cache::{ThreadCache, ThreadCaches};
use crate::store::Charge;
use crate::time::Timestamp;

const SHARDS: usize = 64;
/// Maximum number of evicted keys whose unreported usage is remembered.
const UNREPORTED_KEYS_MAX: usize = 65_536;
/// The number of passes in which a sweep covers all shards.
const SWEEP_PASSES: usize = 8;

/// Units held by the leases, and counters of their operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseReport {
    /// Keys with a lease or a remembered denial.
    pub keys: u64,
    /// Units that are held: debited and not spent.
    pub held: u64,
    /// Requests charged to leases.
    pub lease_hits: u64,
    /// Requests denied by the deny cache.
    pub deny_cache_hits: u64,
    /// Requests charged to the store.
    pub store_charges: u64,
    /// Units acquired ahead of requests.
    pub acquired: u64,
    /// Units returned to the store.
    pub returned: u64,
    /// Units that could not be returned, because their window had ended or the store did not accept them.
    /// Includes the units of requests whose answer never came, which is an upper bound.
    pub stranded: u64,
}

/// The leases of one limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holding {
    /// Keys with enough demand to be leased.
    pub keys: u64,
    /// Units that are held: debited and not spent.
    pub units: u64,
}

/// Monotonic counts.
#[derive(Default)]
pub(super) struct Counts {
    lease_hits: AtomicU64,
    deny_cache_hits: AtomicU64,
    store_charges: AtomicU64,
    acquired: AtomicU64,
    returned: AtomicU64,
    stranded: AtomicU64,
}

impl Counts {
    pub(super) fn lease_hit(&self) {
        self.lease_hits.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn deny_cache_hit(&self) {
        self.deny_cache_hits.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn store_charge(&self) {
        self.store_charges.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn acquired(&self, units: u64) {
        self.acquired.fetch_add(units, Ordering::Relaxed);
    }

    pub(super) fn returned(&self, units: u64) {
        self.returned.fetch_add(units, Ordering::Relaxed);
    }

    pub(super) fn stranded(&self, units: u64) {
        self.stranded.fetch_add(units, Ordering::Relaxed);
    }
}

/// Uses the key as its own hash, since it already is one.
#[derive(Default)]
pub(super) struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.0 ^= u64::from_le_bytes(word);
        }
    }

    fn write_u128(&mut self, key: u128) {
        #[allow(clippy::cast_possible_truncation, reason = "the lower half of a hash is a hash")]
        let low = key as u64;
        self.0 = low;
    }
}

type LeaseShard<R> = HashMap<u128, MapEntry<R>, BuildHasherDefault<IdentityHasher>>;

/// An entry of a shard.
struct MapEntry<R> {
    cell: Arc<Cell<R>>,
    /// When to sweep the cell next. Kept beside the cell, so that a sweep does not touch the cold memory of
    /// most cells.
    sweep_at: Timestamp,
}

impl<R: Clone> MapEntry<R> {
    fn shared(&self) -> Arc<Cell<R>> {
        Arc::clone(&self.cell)
    }

    /// The cell, unless a new policy charges the key under another quota.
    fn cell_of(&self, charge: &Charge<'_>) -> Option<&Arc<Cell<R>>> {
        self.cell.is_of(charge).then_some(&self.cell)
    }
}

/// Which units a sweep takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sweep {
    /// Expired units, of some of the shards.
    Expired,
    /// All units, of all shards.
    All,
}

/// All cells of this node.
pub(super) struct LeaseMap<R> {
    shards: Box<[Mutex<LeaseShard<R>>]>,
    thread_caches: ThreadCaches<R>,
    count: AtomicUsize,
    keys_max: usize,
    is_closed: AtomicBool,
    sweep_pass: AtomicUsize,
    hot_keys: HotKeySketch,
    pub(super) counts: Counts,
    /// Units that were requested and whose answer never came.
    unanswered_units: Arc<AtomicU64>,
    /// Cells to renew before they run out.
    renewal_queue: Mutex<Vec<Arc<Cell<R>>>>,
    /// Units of replaced leases, to be returned.
    unspent: Mutex<Vec<Unspent<R>>>,
    /// Unreported units of evicted keys, for the key's next cell to report.
    unreported: Mutex<HashMap<u128, u64, BuildHasherDefault<IdentityHasher>>>,
}

impl<R: Clone> LeaseMap<R> {
    pub(super) fn new(keys_max: usize) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            thread_caches: ThreadCaches::new(),
            count: AtomicUsize::new(0),
            keys_max,
            is_closed: AtomicBool::new(false),
            sweep_pass: AtomicUsize::new(0),
            hot_keys: HotKeySketch::new(),
            counts: Counts::default(),
            unanswered_units: Arc::default(),
            renewal_queue: Mutex::default(),
            unspent: Mutex::default(),
            unreported: Mutex::default(),
        }
    }

    fn shard(&self, key: u128) -> MutexGuard<'_, LeaseShard<R>> {
        let index = usize::try_from(key >> 64 & (SHARDS as u128 - 1)).unwrap_or(0);
        self.shards[index].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Loads the cells of all charges into this thread's cache. None if a charge cannot be leased or has no
    /// cell.
    #[inline]
    pub(super) fn thread_cache(&self, charges: &[Charge<'_>]) -> Option<MutexGuard<'_, ThreadCache<R>>> {
        let mut cache = self.thread_caches.current();
        for charge in charges {
            if charge.lease().is_none() || charge.cost() == 0 {
                return None;
            }
            if cache.cell(charge).is_none() {
                cache.insert(charge.key(), self.cell(charge)?);
            }
        }
        Some(cache)
    }

    /// The cell of a charge's key, if the charge can be leased.
    pub(super) fn cell(&self, charge: &Charge<'_>) -> Option<Arc<Cell<R>>> {
        charge.lease().filter(|_| charge.cost() > 0)?;
        #[cfg(test)]
        crate::counted::map_lookup();
        let shard = self.shard(charge.key());
        shard.get(&charge.key())?.cell_of(charge).cloned()
    }

    /// A new cell for a charge whose key has none, if the map has capacity and the key is hot enough.
    pub(super) fn insert_cell(&self, charge: &Charge<'_>, now: Timestamp) -> Option<Arc<Cell<R>>> {
        let lease = charge.lease().filter(|_| charge.cost() > 0)?;
        if self.is_closed() {
            return None;
        }
        if lease.is_auto() && self.hot_keys.count(charge.key(), now) < HOT_THRESHOLD {
            return None;
        }
        if self.count.load(Ordering::Relaxed) >= self.keys_max {
            return None;
        }
        let mut shard = self.shard(charge.key());
        // Another request may have inserted it meanwhile.
        if let Some(cell) = shard.get(&charge.key()).and_then(|entry| entry.cell_of(charge)) {
            return Some(Arc::clone(cell));
        }
        let cell = Arc::new(Cell::new(charge, lease, &self.unanswered_units, now));
        cell.inherit_unreported(self.unreported().remove(&charge.key()).unwrap_or(0));
        match shard.insert(charge.key(), MapEntry { cell: Arc::clone(&cell), sweep_at: now }) {
            None => {
                self.count.fetch_add(1, Ordering::Relaxed);
            }
            // A new policy charges the key under another quota. The units move to the new quota, up to its
            // bound. Units of a window are returned instead, and so are all units if only the lease bounds
            // changed.
            Some(old) if old.cell.number != charge.number() => {
                old.cell.mark_removed();
                match old.cell.transfer_to(&cell, lease.most(charge.quota(), 1)) {
                    Some(excess) => self.counts.stranded(excess),
                    None => self.retire(&old.cell),
                }
                cell.inherit_unreported(old.cell.take_all_unreported());
            }
            Some(old) => {
                self.retire(&old.cell);
                cell.inherit_unreported(old.cell.take_all_unreported());
            }
        }
        Some(cell)
    }

    fn unreported(&self) -> MutexGuard<'_, HashMap<u128, u64, BuildHasherDefault<IdentityHasher>>> {
        self.unreported.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers the unreported units of a removed cell, up to [`UNREPORTED_KEYS_MAX`] keys.
    fn keep_unreported(&self, key: u128, cell: &Cell<R>) {
        let units = cell.take_all_unreported();
        let mut unreported = self.unreported();
        if units > 0 && unreported.len() < UNREPORTED_KEYS_MAX {
            unreported.insert(key, units);
        }
    }

    /// Stops leasing.
    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
    }

    pub(super) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// Waits for all renewals in flight.
    pub(super) async fn wait_for_renewals(&self) {
        for shard in &self.shards {
            let cells: Vec<_> =
                shard.lock().unwrap_or_else(PoisonError::into_inner).values().map(MapEntry::shared).collect();
            for cell in cells {
                cell.wait_for_renewal(0).await;
            }
        }
    }

    /// Marks a cell as removed and drains its units for return.
    pub(super) fn retire(&self, cell: &Cell<R>) {
        cell.mark_removed();
        self.drain_for_return(cell);
    }

    fn drain_for_return(&self, cell: &Cell<R>) {
        let Drained { unspent, stranded } = cell.drain();
        self.unspent.lock().unwrap_or_else(PoisonError::into_inner).extend(unspent);
        self.counts.stranded(stranded);
    }

    /// Drains a cell and discards its units.
    pub(super) fn discard(&self, cell: &Cell<R>) {
        let units = cell.units();
        let _ = cell.drain();
        self.counts.stranded(units);
    }

    /// Drains expired units for return, so that the next renewal does not extend them.
    pub(super) fn drain_expired(&self, cell: &Cell<R>, now: Timestamp) {
        if cell.units() > 0 && cell.has_expired(now) {
            self.drain_for_return(cell);
        }
    }

    pub(super) fn clear_denials(&self, charges: &[Charge<'_>]) {
        for charge in charges {
            let cell = self.shard(charge.key()).get(&charge.key()).map(MapEntry::shared);
            if let Some(cell) = cell {
                cell.clear_denials();
            }
        }
    }

    pub(super) fn discard_cells(&self, keys: impl Iterator<Item = u128>) {
        for key in keys {
            let dropped = self.shard(key).remove(&key);
            // The usage count of the key is reset too.
            self.unreported().remove(&key);
            if let Some(MapEntry { cell, .. }) = dropped {
                self.count.fetch_sub(1, Ordering::Relaxed);
                cell.mark_removed();
                cell.mark_reset();
                self.discard(&cell);
            }
        }
    }

    /// Queues a cell for renewal, unless it is queued already.
    pub(super) fn queue_renewal(&self, cell: &Arc<Cell<R>>) {
        // Relaxed: the flag guards no other memory, and only one of several threads sees it change.
        if cell.is_renewal_queued.swap(true, Ordering::Relaxed) {
            return;
        }
        self.renewal_queue.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(cell));
    }

    pub(super) fn take_renewal_queue(&self) -> Vec<Arc<Cell<R>>> {
        let mut queued =
            std::mem::take(&mut *self.renewal_queue.lock().unwrap_or_else(PoisonError::into_inner));
        // A cell that a request renewed in the meantime may be queued twice.
        queued.sort_by_key(Arc::as_ptr);
        queued.dedup_by_key(|cell| Arc::as_ptr(cell));
        queued
    }

    /// Takes the units to return: those of replaced leases and expired ones, or all. Idle keys are removed.
    pub(super) fn take_unspent(&self, now: Timestamp, sweep: Sweep) -> Vec<Unspent<R>> {
        let mut unspent = std::mem::take(&mut *self.unspent.lock().unwrap_or_else(PoisonError::into_inner));
        // A sweep locks only some of the shards, so that requests do not wait for all of them. It covers all
        // shards within [`SWEEP_PASSES`] passes.
        let sweep_pass = self.sweep_pass.fetch_add(1, Ordering::Relaxed);
        for (index, shard) in self.shards.iter().enumerate() {
            if sweep == Sweep::Expired && index % SWEEP_PASSES != sweep_pass % SWEEP_PASSES {
                continue;
            }
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            let before = shard.len();
            shard.retain(|&key, entry| {
                if sweep == Sweep::Expired && now < entry.sweep_at {
                    return true;
                }
                let cell = &entry.cell;
                if cell.units() > 0 && (sweep == Sweep::All || cell.has_expired(now)) {
                    let drained = cell.drain();
                    unspent.extend(drained.unspent);
                    self.counts.stranded(drained.stranded);
                }
                entry.sweep_at = cell.sweep_at(now);
                let is_idle = cell.is_idle(now);
                if is_idle {
                    // Thread caches and renewals in flight must see that the cell was removed.
                    cell.mark_removed();
                    unspent.extend(cell.drain().unspent);
                    self.keep_unreported(key, cell);
                }
                !is_idle
            });
            self.count.fetch_sub(before - shard.len(), Ordering::Relaxed);
        }
        unspent
    }

    /// The leases of each family of counters, by its number.
    pub(super) fn holdings(&self) -> HashMap<u64, Holding> {
        let mut holdings: HashMap<u64, Holding> = HashMap::new();
        for shard in &self.shards {
            for MapEntry { cell, .. } in shard.lock().unwrap_or_else(PoisonError::into_inner).values() {
                let holding = holdings.entry(cell.family).or_default();
                holding.keys += u64::from(cell.is_leased());
                holding.units += cell.units();
            }
        }
        holdings
    }

    pub(super) fn report(&self) -> LeaseReport {
        let held = |shard: &Mutex<LeaseShard<R>>| {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard.values().map(|entry| entry.cell.units()).sum::<u64>()
        };
        let (lease_hits, deny_cache_hits) = self.thread_caches.counts();
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        LeaseReport {
            keys: self.count.load(Ordering::Relaxed) as u64,
            held: self.shards.iter().map(held).sum(),
            lease_hits: of(&self.counts.lease_hits) + lease_hits,
            deny_cache_hits: of(&self.counts.deny_cache_hits) + deny_cache_hits,
            store_charges: of(&self.counts.store_charges),
            acquired: of(&self.counts.acquired),
            returned: of(&self.counts.returned),
            stranded: of(&self.counts.stranded) + of(&self.unanswered_units),
        }
    }
}
