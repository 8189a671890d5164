//! All keys of which something is held or known.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::cell::{Cell, Leftover, Taken};
use super::desk::{Desk, Desks};
use super::heat::{HOT, Heat};
use crate::charge::Charge;
use crate::time::Timestamp;

const SHELVES: usize = 64;
/// Most keys without a cell of which it is remembered what was not told.
const UNTOLD_MAX: usize = 65_536;
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
    /// Units that could not go back: their window had ended, or the store did not take them. With those that were asked for and never
    /// heard of, since no answer came or nobody waited for it any more: at most so many are lost.
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

type Shelf<R> = HashMap<u128, Entry<R>, BuildHasherDefault<Already>>;

/// A key's place on a shelf.
struct Entry<R> {
    cell: Arc<Cell<R>>,
    /// When to look whether something of it is to be given back. Beside the cell and not in it: who goes through a shelf reads the
    /// cells of few keys, and those of most lie in memory that nobody has touched lately.
    look_at: Timestamp,
}

impl<R: Clone> Entry<R> {
    fn shared(&self) -> Arc<Cell<R>> {
        Arc::clone(&self.cell)
    }

    /// The cell, unless a new policy counts the key under another quota.
    fn cell_of(&self, charge: &Charge<'_>) -> Option<&Arc<Cell<R>>> {
        self.cell.is_of(charge).then_some(&self.cell)
    }
}

pub(super) struct Book<R> {
    shelves: Box<[Mutex<Shelf<R>>]>,
    desks: Desks<R>,
    count: AtomicUsize,
    keys_max: usize,
    is_closed: AtomicBool,
    turn: AtomicUsize,
    heat: Heat,
    pub(super) counts: Counts,
    /// Units that were asked for and not heard of again.
    lost: Arc<AtomicU64>,
    /// Keys that run out, to be renewed before they do.
    wanted: Mutex<Vec<Arc<Cell<R>>>>,
    /// What is left of leases that were replaced.
    leftovers: Mutex<Vec<Leftover<R>>>,
    /// Units that no answer has told of, of keys without a cell: the next cell of the key does.
    untold: Mutex<HashMap<u128, u64, BuildHasherDefault<Already>>>,
}

impl<R: Clone> Book<R> {
    pub(super) fn new(keys_max: usize) -> Self {
        Self {
            shelves: (0..SHELVES).map(|_| Mutex::default()).collect(),
            desks: Desks::new(),
            count: AtomicUsize::new(0),
            keys_max,
            is_closed: AtomicBool::new(false),
            turn: AtomicUsize::new(0),
            heat: Heat::new(),
            counts: Counts::default(),
            lost: Arc::default(),
            wanted: Mutex::default(),
            leftovers: Mutex::default(),
            untold: Mutex::default(),
        }
    }

    fn shelf(&self, key: u128) -> MutexGuard<'_, Shelf<R>> {
        let place = usize::try_from(key >> 64 & (SHELVES as u128 - 1)).unwrap_or(0);
        self.shelves[place].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The cells of these charges' keys, at hand; none if one of them is not leased, or nothing is known of it.
    #[inline]
    pub(super) fn at_hand(&self, charges: &[Charge<'_>]) -> Option<MutexGuard<'_, Desk<R>>> {
        let mut desk = self.desks.own();
        for charge in charges {
            if charge.lease().is_none() || charge.cost() == 0 {
                return None;
            }
            if desk.cell(charge).is_none() {
                desk.lay(charge.key(), self.cell(charge)?);
            }
        }
        Some(desk)
    }

    /// What is held of a charge's key, if it may be leased and anything is.
    pub(super) fn cell(&self, charge: &Charge<'_>) -> Option<Arc<Cell<R>>> {
        charge.lease().filter(|_| charge.cost() > 0)?;
        let shelf = self.shelf(charge.key());
        shelf.get(&charge.key())?.cell_of(charge).cloned()
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
        if let Some(cell) = shelf.get(&charge.key()).and_then(|entry| entry.cell_of(charge)) {
            return Some(Arc::clone(cell));
        }
        let cell = Arc::new(Cell::new(charge, lease, &self.lost, now));
        cell.inherits(self.untold().remove(&charge.key()).unwrap_or(0));
        match shelf.insert(charge.key(), Entry { cell: Arc::clone(&cell), look_at: now }) {
            None => {
                self.count.fetch_add(1, Ordering::Relaxed);
            }
            // A new policy counts the key under another quota: what is held under the old one is held under the new, as far as it may be.
            // Where only the bounds of leases are others, or units are of a window, it goes back.
            Some(old) if old.cell.number != charge.number() => {
                old.cell.goes();
                match old.cell.hand_over(&cell, lease.most(charge.quota(), 1)) {
                    Some(rest) => self.counts.stranded(rest),
                    None => self.leave(&old.cell),
                }
                cell.inherits(old.cell.untold());
            }
            Some(old) => {
                self.leave(&old.cell);
                cell.inherits(old.cell.untold());
            }
        }
        Some(cell)
    }

    fn untold(&self) -> MutexGuard<'_, HashMap<u128, u64, BuildHasherDefault<Already>>> {
        self.untold.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers what a cell that is gone did not tell, where there is room.
    fn keep_untold(&self, key: u128, cell: &Cell<R>) {
        let units = cell.untold();
        let mut untold = self.untold();
        if units > 0 && untold.len() < UNTOLD_MAX {
            untold.insert(key, units);
        }
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
                shelf.lock().unwrap_or_else(PoisonError::into_inner).values().map(Entry::shared).collect();
            for cell in cells {
                cell.others_turn(0).await;
            }
        }
    }

    /// Takes what a cell holds out of it, to be given back.
    pub(super) fn leave(&self, cell: &Cell<R>) {
        cell.goes();
        self.take_out(cell);
    }

    fn take_out(&self, cell: &Cell<R>) {
        let Taken { leftovers, stranded } = cell.take_all();
        self.leftovers.lock().unwrap_or_else(PoisonError::into_inner).extend(leftovers);
        self.counts.stranded(stranded);
    }

    /// Takes what a cell holds out of it, and gives it to nobody.
    pub(super) fn strand(&self, cell: &Cell<R>) {
        let units = cell.units();
        let _ = cell.take_all();
        self.counts.stranded(units);
    }

    /// Takes out what was not spent in time: it goes back, and no later draw makes it good again.
    pub(super) fn take_ended(&self, cell: &Cell<R>, now: Timestamp) {
        if cell.units() > 0 && cell.has_ended(now) {
            self.take_out(cell);
        }
    }

    pub(super) fn forget_denials(&self, charges: &[Charge<'_>]) {
        for charge in charges {
            let cell = self.shelf(charge.key()).get(&charge.key()).map(Entry::shared);
            if let Some(cell) = cell {
                cell.forget_denial();
            }
        }
    }

    pub(super) fn drop_cells(&self, charges: &[Charge<'_>]) {
        for charge in charges {
            let dropped = self.shelf(charge.key()).remove(&charge.key());
            // Whoever keeps count forgets the counter, too.
            self.untold().remove(&charge.key());
            if let Some(Entry { cell, .. }) = dropped {
                self.count.fetch_sub(1, Ordering::Relaxed);
                cell.goes();
                cell.forgets();
                self.strand(&cell);
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
    pub(super) fn take_leftovers(&self, now: Timestamp, all: bool) -> Vec<Leftover<R>> {
        let mut rest = std::mem::take(&mut *self.leftovers.lock().unwrap_or_else(PoisonError::into_inner));
        // A few shelves at a time, so that nobody waits for all of them; all are seen within some turns.
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        for (place, shelf) in self.shelves.iter().enumerate() {
            if !all && place % TURNS != turn % TURNS {
                continue;
            }
            let mut shelf = shelf.lock().unwrap_or_else(PoisonError::into_inner);
            let before = shelf.len();
            shelf.retain(|&key, entry| {
                if !all && now < entry.look_at {
                    return true;
                }
                let cell = &entry.cell;
                if cell.units() > 0 && (all || cell.has_ended(now)) {
                    let Taken { leftovers, stranded } = cell.take_all();
                    rest.extend(leftovers);
                    self.counts.stranded(stranded);
                }
                entry.look_at = cell.look_at(now);
                let is_idle = cell.is_idle(now);
                if is_idle {
                    // Who has it at hand, or is about to draw, finds that it is here no more.
                    cell.goes();
                    rest.extend(cell.take_all().leftovers);
                    self.keep_untold(key, cell);
                }
                !is_idle
            });
            self.count.fetch_sub(before - shelf.len(), Ordering::Relaxed);
        }
        rest
    }

    /// What is held of each family of counters, by its number.
    pub(super) fn holdings(&self) -> HashMap<u64, Holding> {
        let mut holdings: HashMap<u64, Holding> = HashMap::new();
        for shelf in &self.shelves {
            for Entry { cell, .. } in shelf.lock().unwrap_or_else(PoisonError::into_inner).values() {
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
            shelf.values().map(|entry| entry.cell.units()).sum::<u64>()
        };
        let (paid, refused) = self.desks.counts();
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        LeaseReport {
            keys: self.count.load(Ordering::Relaxed) as u64,
            held: self.shelves.iter().map(held).sum(),
            paid: of(&self.counts.paid) + paid,
            refused: of(&self.counts.refused) + refused,
            asked: of(&self.counts.asked),
            drawn: of(&self.counts.drawn),
            returned: of(&self.counts.returned),
            stranded: of(&self.counts.stranded) + of(&self.lost),
        }
    }
}
