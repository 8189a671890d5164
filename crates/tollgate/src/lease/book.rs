//! All keys of which something is held or known.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::cell::Cell;
use super::heat::{HOT, Heat};
use crate::charge::Charge;
use crate::time::Timestamp;

const SHELVES: usize = 64;
/// In how many turns all shelves are looked through.
const TURNS: usize = 8;

/// What is held, and what was done with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseReport {
    /// Keys of which something is held or known.
    pub keys: u64,
    /// Units that are held: debited, and not spent.
    pub held: u64,
    /// Requests that were paid of what is held.
    pub paid: u64,
    /// Requests that were denied by what is known.
    pub refused: u64,
    /// Requests that asked the store.
    pub asked: u64,
    /// Units drawn ahead.
    pub drawn: u64,
    /// Units given back.
    pub returned: u64,
    /// Units that could not go back: their window had ended, or the store did not take them.
    pub stranded: u64,
}

/// What is held of the counters of one limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holding {
    /// Keys that are asked about so often that units of them are drawn ahead of time.
    pub keys: u64,
    /// Units that are held: debited, and not spent.
    pub units: u64,
}

/// Counts that only grow.
#[derive(Default)]
pub(super) struct Counts {
    paid: AtomicU64,
    refused: AtomicU64,
    asked: AtomicU64,
    drawn: AtomicU64,
    returned: AtomicU64,
    stranded: AtomicU64,
}

impl Counts {
    pub(super) fn paid(&self) {
        self.paid.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn asked(&self) {
        self.asked.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn drew(&self, units: u64) {
        self.drawn.fetch_add(units, Ordering::Relaxed);
    }

    pub(super) fn returned(&self, units: u64) {
        self.returned.fetch_add(units, Ordering::Relaxed);
    }

    pub(super) fn stranded(&self, units: u64) {
        self.stranded.fetch_add(units, Ordering::Relaxed);
    }
}

/// A key is a hash already.
#[derive(Default)]
pub(super) struct Already(u64);

impl Hasher for Already {
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

type Shelf<R> = HashMap<u128, Arc<Cell<R>>, BuildHasherDefault<Already>>;

pub(super) struct Book<R> {
    shelves: Box<[Mutex<Shelf<R>>]>,
    count: AtomicUsize,
    keys_max: usize,
    is_closed: AtomicBool,
    turn: AtomicUsize,
    heat: Heat,
    pub(super) counts: Counts,
    /// Keys that run out, to be renewed before they do.
    wanted: Mutex<Vec<Arc<Cell<R>>>>,
    /// What is left of leases that were replaced.
    leftovers: Mutex<Vec<(R, u64)>>,
}

impl<R: Clone> Book<R> {
    pub(super) fn new(keys_max: usize) -> Self {
        Self {
            shelves: (0..SHELVES).map(|_| Mutex::default()).collect(),
            count: AtomicUsize::new(0),
            keys_max,
            is_closed: AtomicBool::new(false),
            turn: AtomicUsize::new(0),
            heat: Heat::new(),
            counts: Counts::default(),
            wanted: Mutex::default(),
            leftovers: Mutex::default(),
        }
    }

    fn shelf(&self, key: u128) -> MutexGuard<'_, Shelf<R>> {
        let place = usize::try_from(key >> 64 & (SHELVES as u128 - 1)).unwrap_or(0);
        self.shelves[place].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is held of a charge's key, if it may be leased and anything is.
    pub(super) fn cell(&self, charge: &Charge<'_>) -> Option<Arc<Cell<R>>> {
        charge.lease().filter(|_| charge.cost() > 0)?;
        let shelf = self.shelf(charge.key());
        shelf.get(&charge.key()).filter(|cell| cell.number == charge.number()).cloned()
    }

    /// The same, or a new one where there is room, and where the key is worth it.
    pub(super) fn cell_or_new(&self, charge: &Charge<'_>, now: Timestamp) -> Option<Arc<Cell<R>>> {
        let lease = charge.lease().filter(|_| charge.cost() > 0)?;
        if let Some(cell) = self.cell(charge) {
            return Some(cell);
        }
        if self.is_closed() {
            return None;
        }
        if lease.is_auto() && self.heat.count(charge.key(), now) < HOT {
            return None;
        }
        if self.count.load(Ordering::Relaxed) >= self.keys_max {
            return None;
        }
        let mut shelf = self.shelf(charge.key());
        if let Some(cell) = shelf.get(&charge.key()).filter(|cell| cell.number == charge.number()) {
            return Some(Arc::clone(cell));
        }
        let cell = Arc::new(Cell::new(charge, lease, now));
        match shelf.insert(charge.key(), Arc::clone(&cell)) {
            None => {
                self.count.fetch_add(1, Ordering::Relaxed);
            }
            // A new policy counts the key under another quota: what is held under the old one goes back.
            Some(old) => self.leave(&old),
        }
        Some(cell)
    }

    /// Nothing is drawn any more.
    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
    }

    pub(super) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// Waits for all draws that are under way.
    pub(super) async fn drawn(&self) {
        for shelf in &self.shelves {
            let cells: Vec<_> =
                shelf.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
            for cell in cells {
                cell.others_turn(0).await;
            }
        }
    }

    /// Takes what a cell holds out of it, to be given back.
    pub(super) fn leave(&self, cell: &Cell<R>) {
        cell.is_gone.store(true, Ordering::Release);
        if let Some(rest) = cell.take_all() {
            self.leftovers.lock().unwrap_or_else(PoisonError::into_inner).push(rest);
        }
    }

    pub(super) fn forget_denials(&self, charges: &[Charge<'_>]) {
        for charge in charges {
            let cell = self.shelf(charge.key()).get(&charge.key()).cloned();
            if let Some(cell) = cell {
                cell.forget_denial();
            }
        }
    }

    pub(super) fn drop_cells(&self, charges: &[Charge<'_>]) {
        for charge in charges {
            let dropped = self.shelf(charge.key()).remove(&charge.key());
            if let Some(cell) = dropped {
                self.count.fetch_sub(1, Ordering::Relaxed);
                cell.is_gone.store(true, Ordering::Release);
                let units = cell.take_all().map_or(0, |(_, units)| units);
                self.counts.stranded(units);
            }
        }
    }

    /// Notes a key that runs out.
    pub(super) fn want(&self, cell: &Arc<Cell<R>>) {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(cell));
    }

    pub(super) fn take_wanted(&self) -> Vec<Arc<Cell<R>>> {
        let mut wanted = std::mem::take(&mut *self.wanted.lock().unwrap_or_else(PoisonError::into_inner));
        // One that was renewed by a request in the meantime may have been noted again.
        wanted.sort_by_key(Arc::as_ptr);
        wanted.dedup_by_key(|cell| Arc::as_ptr(cell));
        wanted
    }

    /// What is to be given back at an instant: what is left over, and what nobody spent in time. Keys of which nothing is held and
    /// nothing known are forgotten. With `all`, everything goes back.
    pub(super) fn take_leftovers(&self, now: Timestamp, all: bool) -> Vec<(R, u64)> {
        let mut rest = std::mem::take(&mut *self.leftovers.lock().unwrap_or_else(PoisonError::into_inner));
        // A few shelves at a time, so that nobody waits for all of them; all are seen within some turns.
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        for (place, shelf) in self.shelves.iter().enumerate() {
            if !all && place % TURNS != turn % TURNS {
                continue;
            }
            let mut shelf = shelf.lock().unwrap_or_else(PoisonError::into_inner);
            let before = shelf.len();
            shelf.retain(|_, cell| {
                if cell.units() > 0 && (all || cell.has_ended(now)) {
                    let units = cell.units();
                    match cell.take_all() {
                        Some(left) => rest.push(left),
                        None => self.counts.stranded(units),
                    }
                }
                !cell.is_idle(now)
            });
            self.count.fetch_sub(before - shelf.len(), Ordering::Relaxed);
        }
        rest
    }

    /// What is held of each family of counters, by its number.
    pub(super) fn holdings(&self) -> HashMap<u64, Holding> {
        let mut holdings: HashMap<u64, Holding> = HashMap::new();
        for shelf in &self.shelves {
            for cell in shelf.lock().unwrap_or_else(PoisonError::into_inner).values() {
                let holding = holdings.entry(cell.family).or_default();
                holding.keys += u64::from(cell.is_leased());
                holding.units += cell.units();
            }
        }
        holdings
    }

    pub(super) fn report(&self) -> LeaseReport {
        let held = |shelf: &Mutex<Shelf<R>>| {
            let shelf = shelf.lock().unwrap_or_else(PoisonError::into_inner);
            shelf.values().map(|cell| cell.units()).sum::<u64>()
        };
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        LeaseReport {
            keys: self.count.load(Ordering::Relaxed) as u64,
            held: self.shelves.iter().map(held).sum(),
            paid: of(&self.counts.paid),
            refused: of(&self.counts.refused),
            asked: of(&self.counts.asked),
            drawn: of(&self.counts.drawn),
            returned: of(&self.counts.returned),
            stranded: of(&self.counts.stranded),
        }
    }
}
