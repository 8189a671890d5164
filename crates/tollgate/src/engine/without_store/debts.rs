//! What this process admitted by itself and the store does not know yet, and what it could not give back. Each is told to the store once,
//! when it answers again. A debt fades as the units of its quota come back, so nobody pays for what is long over.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;

use super::local::Local;
use crate::algorithm::concurrency::PermitId;
use crate::charge::Charge;
use crate::engine::hold::Held;
use crate::engine::live::Live;
use crate::key::Fingerprint;
use crate::quota::Quota;
use crate::time::Timestamp;

/// Most counters with debts. What another owes is dropped, and counted.
pub const DEBTS_MAX: usize = 10_000;

/// Whose debt it is. A place in flight has a name; units have none.
type Debtor = (Fingerprint, PermitId);

/// The debts of this process.
pub(super) struct Debts {
    /// How many there are, to be asked without the lock.
    held: AtomicUsize,
    book: Mutex<HashMap<Debtor, Debt>>,
    pub(super) replayed: AtomicU64,
    pub(super) dropped: AtomicU64,
}

/// One debt.
#[derive(Clone, Debug)]
pub(super) struct Debt {
    pub(super) held: Held,
    pub(super) permit: PermitId,
    kind: Kind,
    at: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Units in the ledger, and so many beside it, from shares that are no more.
    Units(u64),
    /// A place in flight.
    Place,
    /// Units to be given back.
    Refund(u64),
}

/// What is to be told to the store. One that is dropped without having been told is counted as dropped.
pub(super) struct Due<'d> {
    debts: &'d Debts,
    pub(super) debt: Option<Debt>,
    pub(super) units: u64,
}

impl Debts {
    pub(super) fn new() -> Self {
        Self {
            held: AtomicUsize::new(0),
            book: Mutex::new(HashMap::new()),
            replayed: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
        }
    }

    fn book(&self) -> MutexGuard<'_, HashMap<Debtor, Debt>> {
        // Each statement leaves the book in order.
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many counters owe something.
    #[inline]
    pub(super) fn held(&self) -> usize {
        // Relaxed: a debt that was just made is found by the next who asks.
        self.held.load(Ordering::Relaxed)
    }

    /// Whether one of these counters owes units.
    #[inline]
    pub(super) fn owes(&self, charges: &[Charge<'_>]) -> bool {
        self.held() > 0 && {
            let book = self.book();
            charges.iter().any(|charge| book.contains_key(&(charge.key, PermitId(0))))
        }
    }

    /// A look at some counter that owes something.
    pub(super) fn look<'l>(&self, live: &'l Live) -> SmallVec<[Charge<'l>; 1]> {
        let book = self.book();
        book.values().find_map(|debt| debt.held.charge(live, debt.permit, 0)).into_iter().collect()
    }

    /// Takes down what a charge of the store would have taken.
    pub(super) fn add(&self, local: &Local, live: &Live, charge: &Charge<'_>, held: Held, now: Timestamp) {
        let is_place = matches!(charge.quota, Quota::Concurrency(_));
        let (kind, permit) =
            if is_place { (Kind::Place, charge.permit) } else { (Kind::Units(0), PermitId(0)) };
        let Some((limit, quota)) = held.place(live) else { return };
        let (mut book, mut cost) = (self.book(), charge.cost);
        let is_full = book.len() >= DEBTS_MAX;
        match book.get_mut(&(charge.key, permit)) {
            Some(debt) => {
                // What was to be given back is now owed: the one is set against the other.
                if let Kind::Refund(units) = &mut debt.kind {
                    let set_off = cost.min(*units);
                    (*units, cost) = (*units - set_off, cost - set_off);
                    if cost > 0 {
                        debt.kind = kind;
                    }
                }
            }
            None if is_full => return self.drop_one(),
            None => {
                book.insert((charge.key, permit), Debt { held, permit, kind, at: now });
                self.held.store(book.len(), Ordering::Relaxed);
            }
        }
        if !is_place && cost > 0 {
            local.owe(live, limit, quota, &charge.costing(cost), now);
        }
    }

    /// Takes what is owed out of the ledger, before the shares that it is counted by are replaced. It does not fade any more.
    pub(super) fn carry(&self, local: &Local, live: &Live, now: Timestamp) {
        if self.held() == 0 {
            return;
        }
        for debt in self.book().values_mut() {
            if let Kind::Units(_) = debt.kind {
                debt.kind = Kind::Units(self.owed(local, live, debt, now));
            }
        }
    }

    /// Takes down what could not be given back: from the debt if there is one, else as a debt of ours.
    pub(super) fn add_refund(
        &self,
        local: &Local,
        live: &Live,
        charge: &Charge<'_>,
        held: Held,
        now: Timestamp,
    ) {
        if self.forgive(local, live, charge, now) {
            return;
        }
        let mut book = self.book();
        let (debtor, is_full) = ((charge.key, PermitId(0)), book.len() >= DEBTS_MAX);
        match book.get_mut(&debtor) {
            Some(Debt { kind: Kind::Refund(units), .. }) => *units = units.saturating_add(charge.cost),
            Some(_) => {}
            None if is_full => self.drop_one(),
            None => {
                let kind = Kind::Refund(charge.cost);
                book.insert(debtor, Debt { held, permit: PermitId(0), kind, at: now });
                self.held.store(book.len(), Ordering::Relaxed);
            }
        }
    }

    /// Takes back what was taken down, if it was not told to the store yet.
    pub(super) fn forgive(&self, local: &Local, live: &Live, charge: &Charge<'_>, now: Timestamp) -> bool {
        if self.held() == 0 {
            return false;
        }
        let mut book = self.book();
        let is_place = matches!(charge.quota, Quota::Concurrency(_));
        let debtor = (charge.key, if is_place { charge.permit } else { PermitId(0) });
        match book.get_mut(&debtor) {
            Some(Debt { kind: Kind::Place, .. }) => {
                book.remove(&debtor);
                self.held.store(book.len(), Ordering::Relaxed);
                true
            }
            Some(Debt { kind: Kind::Units(carried), held, .. }) => {
                // What does not fade is forgiven first.
                let first = charge.cost.min(*carried);
                *carried -= first;
                if let Some((limit, quota)) = held.place(live) {
                    local.unowe(live, limit, quota, &charge.costing(charge.cost - first), now);
                }
                true
            }
            Some(_) | None => false,
        }
    }

    /// Forgets what a counter owes.
    pub(super) fn forget(&self, local: &Local, live: &Live, charge: &Charge<'_>, now: Timestamp) {
        if self.held() > 0 {
            let mut book = self.book();
            if let Some(debt) = book.get(&(charge.key, PermitId(0))) {
                self.owed(local, live, debt, now);
            }
            book.retain(|(key, _), _| *key != charge.key);
            self.held.store(book.len(), Ordering::Relaxed);
        }
    }

    /// Drops everything, as when keys are no longer what they were.
    pub(super) fn drop_all(&self) {
        let mut book = self.book();
        self.dropped.fetch_add(book.len() as u64, Ordering::Relaxed);
        book.clear();
        self.held.store(0, Ordering::Relaxed);
    }

    fn drop_one(&self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes out what these charges owe, or, of nobody in particular, as many as `most`.
    pub(super) fn take(
        &self,
        local: &Local,
        live: &Live,
        of: Option<&[Charge<'_>]>,
        most: usize,
        now: Timestamp,
    ) -> Vec<Due<'_>> {
        let mut book = self.book();
        let debtors: Vec<Debtor> = match of {
            // Units are found by their key; places of it wait for whoever takes all.
            Some(charges) => charges.iter().map(|charge| (charge.key, PermitId(0))).collect(),
            None => book.keys().take(most).copied().collect(),
        };
        let mut due = Vec::new();
        for debtor in debtors {
            let Some(debt) = book.remove(&debtor) else { continue };
            let units = self.owed(local, live, &debt, now);
            if units > 0 {
                due.push(Due { debts: self, debt: Some(debt), units });
            }
        }
        self.held.store(book.len(), Ordering::Relaxed);
        due
    }

    /// What is still owed; taken out of the ledger.
    fn owed(&self, local: &Local, live: &Live, debt: &Debt, now: Timestamp) -> u64 {
        let charge = debt.held.charge(live, debt.permit, 0);
        let (Some(charge), Some((limit, quota))) = (charge, debt.held.place(live)) else {
            return 0; // The limit is gone, and with it what it counted.
        };
        match debt.kind {
            Kind::Place if now.since(debt.at) < charge.quota.memory() => debt.held.cost(),
            Kind::Place => 0,
            Kind::Refund(units) => charge.quota.still_counted(units, debt.at, now),
            Kind::Units(carried) => {
                let counted = local.take_owed(live, limit, quota, &charge, now);
                if counted.is_none() {
                    self.drop_one();
                }
                carried.saturating_add(counted.unwrap_or(0)).min(charge.quota.capacity())
            }
        }
    }

    /// Takes down again what the store was not asked for after all.
    fn put_back(&self, local: &Local, live: &Live, debt: Debt, units: u64, now: Timestamp) {
        let Some(charge) = debt.held.charge(live, debt.permit, units) else { return };
        let Debt { held, kind, at, .. } = debt;
        match kind {
            Kind::Units(_) | Kind::Place => self.add(local, live, &charge, held, now),
            Kind::Refund(_) => self.add_refund(local, live, &charge, held, at),
        }
    }
}

impl Due<'_> {
    /// Whether the units are to be given back.
    pub(super) fn is_refund(&self) -> bool {
        self.debt.as_ref().is_some_and(|debt| matches!(debt.kind, Kind::Refund(_)))
    }

    /// The charge that tells it.
    pub(super) fn charge<'l>(&self, live: &'l Live) -> Option<Charge<'l>> {
        self.debt.as_ref().and_then(|debt| debt.held.charge(live, debt.permit, self.units))
    }

    /// The store knows.
    pub(super) fn paid(mut self) {
        self.debt = None;
        self.debts.replayed.fetch_add(1, Ordering::Relaxed);
    }

    /// The store was not asked.
    pub(super) fn put_back(mut self, local: &Local, live: &Live, now: Timestamp) {
        if let Some(debt) = self.debt.take() {
            self.debts.put_back(local, live, debt, self.units, now);
        }
    }
}

impl Drop for Due<'_> {
    fn drop(&mut self) {
        if self.debt.is_some() {
            self.debts.drop_one(); // The store may know or not. It is not told twice.
        }
    }
}
