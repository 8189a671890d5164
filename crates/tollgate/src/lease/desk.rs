//! The cells that a thread asked about lately, at hand. Looking a key up and spending of it then writes nothing that other threads write
//! too, but the cell itself.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::cell::Cell;
use crate::charge::Charge;

/// Threads that have a desk of their own; further ones share them.
const DESKS: usize = 64;
/// Places on each: as many of its keys are found without asking the book. A power of two.
const PLACES: usize = 8_192;

/// One thread's desk. It is only ever behind the book: a cell that is there no more says so itself.
pub(super) struct Desk<R> {
    /// None until somebody sits there.
    places: Box<[Option<Place<R>>]>,
    /// Requests that were paid of what is held, and that were denied by what is known.
    pub(super) paid: u64,
    pub(super) refused: u64,
}

struct Place<R> {
    key: u128,
    cell: Arc<Cell<R>>,
}

impl<R> Default for Desk<R> {
    fn default() -> Self {
        Self { places: Box::default(), paid: 0, refused: 0 }
    }
}

impl<R: Clone> Desk<R> {
    fn place_of(key: u128) -> usize {
        usize::try_from(key & (PLACES as u128 - 1)).unwrap_or(0)
    }

    /// The cell of a charge's key, if it is at hand and in the book.
    #[inline]
    pub(super) fn cell(&self, charge: &Charge<'_>) -> Option<&Arc<Cell<R>>> {
        let key = charge.key();
        let place = self.places.get(Self::place_of(key))?.as_ref()?;
        let is_good = place.key == key && place.cell.is_of(charge) && !place.cell.is_gone();
        is_good.then_some(&place.cell)
    }

    /// Puts a cell where it is at hand.
    pub(super) fn lay(&mut self, key: u128, cell: Arc<Cell<R>>) {
        if self.places.is_empty() {
            self.places = (0..PLACES).map(|_| None).collect();
        }
        self.places[Self::place_of(key)] = Some(Place { key, cell });
    }
}

/// All desks.
pub(super) struct Desks<R>(Box<[Apart<Mutex<Desk<R>>>]>);

/// On a cache line of its own, so that neighbours do not wait for each other.
#[repr(align(128))]
struct Apart<T>(T);

impl<R> Desks<R> {
    pub(super) fn new() -> Self {
        Self((0..DESKS).map(|_| Apart(Mutex::default())).collect())
    }

    /// The desk of this thread. The lock is its own, and free but where there are more threads than desks.
    #[inline]
    pub(super) fn own(&self) -> MutexGuard<'_, Desk<R>> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            // Relaxed: the numbers need only differ.
            static NUMBER: usize = NEXT.fetch_add(1, Ordering::Relaxed) % DESKS;
        }
        // A thread that ends may still ask.
        let number = NUMBER.try_with(|number| *number).unwrap_or(0);
        Self::locked(&self.0[number])
    }

    fn locked(desk: &Apart<Mutex<Desk<R>>>) -> MutexGuard<'_, Desk<R>> {
        // Each statement leaves a desk in order.
        desk.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Requests that were paid, and that were refused, at all of them.
    pub(super) fn counts(&self) -> (u64, u64) {
        self.0
            .iter()
            .map(Self::locked)
            .fold((0, 0), |(paid, refused), desk| (paid + desk.paid, refused + desk.refused))
    }
}
