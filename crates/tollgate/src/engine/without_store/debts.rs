//! What this process admitted by itself and the store does not know yet, and what it could not give back. Each is told to the store once,
//! when it answers again. A debt is what this node's share has used more than it would have by what the store knows: so it fades as
//! units come back, and nobody pays for what is long over.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::local::{Local, Spot};
use crate::algorithm::concurrency::PermitId;
use crate::charge::Charge;
use crate::engine::hold::Held;
use crate::engine::live::Live;
use crate::engine::tally::Windows;
use crate::key::Fingerprint;
use crate::quota::Quota;
use crate::time::Timestamp;

/// Most counters with debts. What another owes is dropped, and counted.
pub const DEBTS_MAX: usize = 10_000;

/// Whose debt it is. A place in flight has a name; units have none.
type Debtor = (Fingerprint, PermitId);

/// What a debt was counted by.
#[derive(Clone, Debug)]
pub(super) enum Counter {
    Limit(Box<Held>),
    Tally(Arc<Windows>, Fingerprint),
}

impl From<Held> for Counter {
    fn from(held: Held) -> Self {
        Counter::Limit(Box::new(held))
    }
}

impl Counter {
    /// The charge that it has now; none when its limit is gone.
    pub(super) fn charge<'c>(&'c self, live: &'c Live, permit: PermitId, cost: u64) -> Option<Charge<'c>> {
        match self {
            Counter::Limit(held) => held.charge(live, permit, cost),
            Counter::Tally(windows, key) => Some(windows.charge(*key, cost)),
        }
    }

    fn spot<'c>(&'c self, live: &'c Live, charge: &'c Charge<'c>) -> Option<Spot<'c>> {
        match self {
            Counter::Limit(held) => Spot::held(live, held, charge),
            Counter::Tally(..) => Some(Spot::tally(charge)),
        }
    }

    /// What it was charged at first.
    fn cost(&self) -> u64 {
        match self {
            Counter::Limit(held) => held.cost(),
            Counter::Tally(..) => 0,
        }
    }

    /// Whether it is counted by a share, which changes with the policy and the number of nodes.
    const fn has_share(&self) -> bool {
        matches!(self, Counter::Limit(_))
    }
}

/// The debts of this process.
pub(super) struct Debts {
    /// How many there are, to be asked without the lock.
    held: AtomicUsize,
    book: Mutex<BTreeMap<Debtor, Debt>>,
    pub(super) replayed: AtomicU64,
    pub(super) dropped: AtomicU64,
}

/// One debt.
#[derive(Clone, Debug)]
pub(super) struct Debt {
    pub(super) counter: Counter,
    pub(super) permit: PermitId,
    kind: Kind,
    at: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Units that were taken since the counter was marked, and so many beside them; less than nothing are to be given back.
    Units(i64),
    /// A place in flight.
    Place,
}

/// What is to be told to the store. One that is dropped without having been told is counted as dropped.
pub(super) struct Due<'d> {
    debts: &'d Debts,
    pub(super) debt: Option<Debt>,
    units: i64,
}

impl Debts {
    pub(super) fn new() -> Self {
        Self {
            held: AtomicUsize::new(0),
            book: Mutex::new(BTreeMap::new()),
            replayed: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
        }
    }

    fn book(&self) -> MutexGuard<'_, BTreeMap<Debtor, Debt>> {
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

    /// Whether one of these counters owes units, or places.
    #[inline]
    pub(super) fn owes_anything(&self, charges: &[Charge<'_>]) -> bool {
        self.held() > 0 && {
            let book = self.book();
            charges.iter().any(|charge| book.range(all_of(charge.key)).next().is_some())
        }
    }

    /// Units of the places of a key that the store does not know of, or perhaps not.
    pub(super) fn places(&self, charge: &Charge<'_>) -> u64 {
        if self.held() == 0 {
            return 0;
        }
        let book = self.book();
        let places = book.range(all_of(charge.key)).filter(|(_, debt)| debt.kind == Kind::Place);
        places.filter(|((_, permit), _)| *permit != charge.permit).map(|(_, debt)| debt.counter.cost()).sum()
    }

    /// Some counter that owes something, to be looked at.
    pub(super) fn any(&self, live: &Live) -> Option<(Counter, PermitId)> {
        let book = self.book();
        let mut there = book.values().filter(|debt| debt.counter.charge(live, debt.permit, 0).is_some());
        there.next().map(|debt| (debt.counter.clone(), debt.permit))
    }

    /// Marks a counter that is about to be charged without the store. Called before the charge, so that nothing of it is in the mark.
    pub(super) fn begin(
        &self,
        local: &Local,
        live: &Live,
        charge: &Charge<'_>,
        counter: impl FnOnce() -> Counter,
        now: Timestamp,
    ) {
        if matches!(charge.quota, Quota::Concurrency(_)) {
            return;
        }
        let mut book = self.book();
        if book.len() < DEBTS_MAX && !book.contains_key(&(charge.key, PermitId(0))) {
            self.insert(&mut book, local, live, (charge, counter()), 0, now);
        }
    }

    fn insert(
        &self,
        book: &mut BTreeMap<Debtor, Debt>,
        local: &Local,
        live: &Live,
        (charge, counter): (&Charge<'_>, Counter),
        units: i64,
        now: Timestamp,
    ) {
        if let Some(spot) = counter.spot(live, charge) {
            local.mark(&spot, now);
        }
        let debt = Debt { counter, permit: PermitId(0), kind: Kind::Units(units), at: now };
        book.insert((charge.key, PermitId(0)), debt);
        self.held.store(book.len(), Ordering::Relaxed);
    }

    /// Takes down a charge that was made without the store: a place, or units that [`Debts::begin`] had no room for.
    pub(super) fn add(&self, charge: &Charge<'_>, counter: impl FnOnce() -> Counter, now: Timestamp) {
        if matches!(charge.quota, Quota::Concurrency(_)) {
            let mut book = self.book();
            if book.len() >= DEBTS_MAX {
                return self.drop_one();
            }
            let debt = Debt { counter: counter(), permit: charge.permit, kind: Kind::Place, at: now };
            book.insert((charge.key, charge.permit), debt);
            self.held.store(book.len(), Ordering::Relaxed);
        } else if self.held() >= DEBTS_MAX && !self.owes(std::slice::from_ref(charge)) {
            self.drop_one();
        }
    }

    /// Counts up what is owed before the shares that it is counted by are replaced. It does not fade any more.
    pub(super) fn carry(&self, local: &Local, live: &Live, now: Timestamp) {
        if self.held() == 0 {
            return;
        }
        let is_carried = |debt: &&mut Debt| debt.kind != Kind::Place && debt.counter.has_share();
        for debt in self.book().values_mut().filter(is_carried) {
            debt.kind = Kind::Units(self.owed(local, live, debt, now));
            debt.at = now;
            if let Some(charge) = debt.counter.charge(live, debt.permit, 0)
                && let Some(spot) = debt.counter.spot(live, &charge)
            {
                local.mark(&spot, now);
            }
        }
    }

    /// Takes down what could not be given back in the store and was given back here.
    pub(super) fn add_refund(
        &self,
        local: &Local,
        live: &Live,
        charge: &Charge<'_>,
        counter: Counter,
        now: Timestamp,
    ) {
        let mut book = self.book();
        // A counter that has a mark already has less since then.
        if !book.contains_key(&(charge.key, PermitId(0))) {
            if book.len() >= DEBTS_MAX {
                return self.drop_one();
            }
            let units = i64::try_from(charge.cost).unwrap_or(i64::MAX);
            self.insert(&mut book, local, live, (charge, counter), -units, now);
        }
    }

    /// Takes a place back; tells whether the store never knew of it.
    pub(super) fn take_back(&self, charge: &Charge<'_>) -> bool {
        let mut book = self.book();
        let was_there = book.remove(&(charge.key, charge.permit)).is_some();
        self.held.store(book.len(), Ordering::Relaxed);
        was_there
    }

    /// Forgets what a counter owes.
    pub(super) fn forget(&self, charge: &Charge<'_>) {
        if self.held() > 0 {
            let mut book = self.book();
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
            Some(charges) => {
                let each = charges.iter().flat_map(|charge| book.range(all_of(charge.key)));
                each.map(|(&debtor, _)| debtor).collect()
            }
            None => book.keys().take(most).copied().collect(),
        };
        let mut due = Vec::new();
        for debtor in debtors {
            let Some(debt) = book.remove(&debtor) else { continue };
            let units = self.owed(local, live, &debt, now);
            if units != 0 {
                due.push(Due { debts: self, debt: Some(debt), units });
            }
        }
        self.held.store(book.len(), Ordering::Relaxed);
        due
    }

    /// What is still owed, or less than nothing.
    fn owed(&self, local: &Local, live: &Live, debt: &Debt, now: Timestamp) -> i64 {
        // If the limit is gone, so is what it counted.
        let Some(charge) = debt.counter.charge(live, debt.permit, 0) else { return 0 };
        let Some(spot) = debt.counter.spot(live, &charge) else { return 0 };
        let signed = |units: u64| i64::try_from(units).unwrap_or(i64::MAX);
        let burst = signed(charge.quota.capacity());
        match debt.kind {
            Kind::Place if now.since(debt.at) < charge.quota.memory() => signed(debt.counter.cost()),
            Kind::Place => 0,
            Kind::Units(beside) => {
                let since = local.since_mark(&spot, now);
                if since.is_none() {
                    self.drop_one();
                }
                // What has come back by itself is not given back.
                let refund = charge.quota.still_counted(beside.min(0).unsigned_abs(), debt.at, now);
                let beside = if beside < 0 { -signed(refund) } else { beside };
                beside.saturating_add(since.unwrap_or(0)).clamp(-burst, burst)
            }
        }
    }

    /// Takes down again what the store was not asked for after all.
    fn put_back(&self, local: &Local, live: &Live, debt: Debt, units: i64, now: Timestamp) {
        let counter = debt.counter.clone();
        let Some(charge) = counter.charge(live, debt.permit, 0) else { return };
        let mut book = self.book();
        match book.get_mut(&(charge.key, debt.permit)) {
            Some(Debt { kind: Kind::Units(beside), .. }) => *beside = beside.saturating_add(units),
            Some(_) => {}
            None if debt.kind == Kind::Place => {
                book.insert((charge.key, debt.permit), debt);
                self.held.store(book.len(), Ordering::Relaxed);
            }
            None => self.insert(&mut book, local, live, (&charge, debt.counter), units, now),
        }
    }
}

/// Everything that a key may owe: units, and places by their names.
const fn all_of(key: Fingerprint) -> RangeInclusive<Debtor> {
    (key, PermitId(0))..=(key, PermitId(u64::MAX))
}

impl Due<'_> {
    /// Whether the units are to be given back.
    pub(super) fn is_refund(&self) -> bool {
        self.units < 0
    }

    /// The charge that tells it. What several requests gave back has no one instant.
    pub(super) fn charge<'c>(&'c self, live: &'c Live) -> Option<Charge<'c>> {
        let debt = self.debt.as_ref()?;
        let charge = debt.counter.charge(live, debt.permit, self.units.unsigned_abs())?;
        Some(Charge { charged_at: None, ..charge })
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
