//! The thread cache: the cells that a thread used lately. A hit writes no memory that threads share, except
//! the cell itself.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::cell::Cell;
use crate::store::Charge;

/// The number of thread caches. Further threads share them.
const THREAD_CACHES: usize = 64;
/// Slots of each cache. A power of two.
const SLOTS: usize = 8_192;

/// One thread's cache. It may be stale: a removed cell is marked as such.
pub(super) struct ThreadCache<R> {
    /// Empty until the first insertion.
    slots: Box<[Option<CachedCell<R>>]>,
    /// Requests charged to leases, and requests answered by the deny cache.
    pub(super) lease_hits: u64,
    pub(super) deny_cache_hits: u64,
}

struct CachedCell<R> {
    key: u128,
    cell: Arc<Cell<R>>,
}

impl<R> Default for ThreadCache<R> {
    fn default() -> Self {
        Self { slots: Box::default(), lease_hits: 0, deny_cache_hits: 0 }
    }
}

impl<R: Clone> ThreadCache<R> {
    fn slot_of(key: u128) -> usize {
        usize::try_from(key & (SLOTS as u128 - 1)).unwrap_or(0)
    }

    /// The cached cell of a charge's key, if it is still in the map.
    #[inline]
    pub(super) fn cell(&self, charge: &Charge<'_>) -> Option<&Arc<Cell<R>>> {
        #[cfg(test)]
        crate::counted::cache_lookup();
        let key = charge.key();
        let slot = self.slots.get(Self::slot_of(key))?.as_ref()?;
        let is_current = slot.key == key && slot.cell.is_of(charge) && !slot.cell.is_removed();
        is_current.then_some(&slot.cell)
    }

    pub(super) fn insert(&mut self, key: u128, cell: Arc<Cell<R>>) {
        if self.slots.is_empty() {
            self.slots = (0..SLOTS).map(|_| None).collect();
        }
        self.slots[Self::slot_of(key)] = Some(CachedCell { key, cell });
    }
}

/// The caches of all threads.
pub(super) struct ThreadCaches<R>(Box<[CacheAligned<Mutex<ThreadCache<R>>>]>);

/// Aligned to cache lines, so that neighbours do not contend.
#[repr(align(128))]
struct CacheAligned<T>(T);

impl<R> ThreadCaches<R> {
    pub(super) fn new() -> Self {
        Self((0..THREAD_CACHES).map(|_| CacheAligned(Mutex::default())).collect())
    }

    /// The cache of this thread. Its lock is uncontended unless there are more threads than caches.
    #[inline]
    pub(super) fn current(&self) -> MutexGuard<'_, ThreadCache<R>> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            // Relaxed: the numbers need only differ.
            static NUMBER: usize = NEXT.fetch_add(1, Ordering::Relaxed) % THREAD_CACHES;
        }
        // A thread may still decide while its thread-locals are destroyed.
        let number = NUMBER.try_with(|number| *number).unwrap_or(0);
        Self::locked(&self.0[number])
    }

    fn locked(cache: &CacheAligned<Mutex<ThreadCache<R>>>) -> MutexGuard<'_, ThreadCache<R>> {
        // A panic leaves a cache consistent, because each statement does.
        cache.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Requests charged to leases, and requests answered by the deny caches, over all threads.
    pub(super) fn counts(&self) -> (u64, u64) {
        self.0.iter().map(Self::locked).fold((0, 0), |(lease_hits, deny_cache_hits), cache| {
            (lease_hits + cache.lease_hits, deny_cache_hits + cache.deny_cache_hits)
        })
    }
}
