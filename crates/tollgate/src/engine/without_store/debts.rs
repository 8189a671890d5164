//! What this process admitted by itself and the store does not know yet, and what it could not give back. Each is told to the store once,
//! when it answers again. A debt is what this node's share has used more than it would have by what the store knows: so it fades as
//! units come back, and nobody pays for what is long over. What is to be given back is kept apart from that, with the earliest instant at
//! which it may have been charged: set off against later units it would expire with those that it pays for. Places in flight are left
//! to [`super::permits`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::counter::Counter;
use super::local::Local;
use super::permits::{Name, Owed, UnreportedPermits};
use crate::algorithm::Charged;
use crate::algorithm::concurrency::PermitId;
use crate::engine::live::Live;
use crate::key::Fingerprint;
use crate::quota::Quota;
use crate::store::Charge;
use crate::time::Timestamp;

/// Most counters with debts. What another owes is dropped, and counted.
pub const DEBTS_MAX: usize = 10_000;

/// The debts of this process.
pub(super) struct Debts {
    /// How many there are, to be asked without the lock.
    held: AtomicUsize,
    book: Mutex<BTreeMap<Fingerprint, Debt>>,
    /// How many counters are being reported to the store, to be asked without the lock.
    reporting: AtomicUsize,
    /// Those counters. Until the report has arrived the store would admit their units again.
    reports: Mutex<BTreeSet<Fingerprint>>,
    pub(super) permits: UnreportedPermits,
    pub(super) replayed: AtomicU64,
    pub(super) dropped: AtomicU64,
}

/// What one counter owes.
#[derive(Clone, Debug)]
pub(super) struct Debt {
    counter: Counter,
    /// Units beside those that were taken since the counter was marked.
    beside: u64,
    /// When it was marked.
    at: Timestamp,
    /// Units that the limit let pass while it was open, and when the last of them passed.
    open: (u64, Timestamp),
    refund: Refund,
}

/// Units that the store has to give back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Refund {
    units: u64,
    /// The earliest instant at which one of them may have been charged, by this process's clock.
    earliest: Timestamp,
}

impl Refund {
    /// Both together. An earlier instant gives back less, never more.
    fn and(self, other: Refund) -> Refund {
        if self.units == 0 {
            return other;
        }
        let (units, earliest) = (self.units.saturating_add(other.units), self.earliest.min(other.earliest));
        Refund { units, earliest }
    }
}

/// What is to be told to the store. Units that are dropped without having been told are counted as dropped.
pub(super) struct Due<'d> {
    debts: &'d Debts,
    what: Option<What>,
    /// The counter whose units it reports.
    counter: Option<Fingerprint>,
}

enum What {
    Units(Counter, u64),
    Refund(Counter, Refund),
    Permit(Owed),
}

impl Debts {
    pub(super) fn new() -> Self {
        Self {
            held: AtomicUsize::new(0),
            book: Mutex::new(BTreeMap::new()),
            reporting: AtomicUsize::new(0),
            reports: Mutex::new(BTreeSet::new()),
            permits: UnreportedPermits::default(),
            replayed: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
        }
    }

    fn book(&self) -> MutexGuard<'_, BTreeMap<Fingerprint, Debt>> {
        // Each statement leaves the book in order.
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many counters owe something, and how many places the store must be told of.
    #[inline]
    pub(super) fn held(&self) -> usize {
        // Relaxed: a debt that was just made is found by the next who asks.
        self.held.load(Ordering::Relaxed) + self.permits.owed()
    }

    fn holds_units(&self) -> bool {
        self.held.load(Ordering::Relaxed) > 0
    }

    fn reports(&self) -> MutexGuard<'_, BTreeSet<Fingerprint>> {
        // Each statement leaves the set in order.
        self.reports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether units of one of these counters are on their way to the store.
    #[inline]
    pub(super) fn is_reporting(&self, charges: &[Charge<'_>]) -> bool {
        self.reporting.load(Ordering::Relaxed) > 0 && {
            let reports = self.reports();
            charges.iter().any(|charge| reports.contains(&charge.key))
        }
    }

    fn begin_report(&self, counter: Fingerprint) {
        let mut reports = self.reports();
        reports.insert(counter);
        self.reporting.store(reports.len(), Ordering::Relaxed);
    }

    fn end_report(&self, counter: Fingerprint) {
        let mut reports = self.reports();
        reports.remove(&counter);
        self.reporting.store(reports.len(), Ordering::Relaxed);
    }

    /// Whether one of these counters owes units.
    #[inline]
    pub(super) fn owes(&self, charges: &[Charge<'_>]) -> bool {
        self.holds_units() && {
            let book = self.book();
            charges.iter().any(|charge| book.contains_key(&charge.key))
        }
    }

    /// Whether one of these counters owes units or places, or is being reported.
    #[inline]
    pub(super) fn owes_anything(&self, charges: &[Charge<'_>]) -> bool {
        self.owes(charges) || self.is_reporting(charges) || self.permits.owes(charges)
    }

    /// Whether a counter was marked no later than at this instant, so that the store does not know what was charged here since.
    pub(super) fn is_marked_since(&self, charge: &Charge<'_>, at: Timestamp) -> bool {
        self.holds_units() && self.book().get(&charge.key).is_some_and(|debt| debt.at <= at)
    }

    /// Some counter that owes something, to be looked at.
    pub(super) fn any(&self, live: &Live) -> Option<(Counter, PermitId)> {
        let units = {
            let book = self.book();
            let mut there = book.values().filter(|debt| debt.counter.charge(live, PermitId(0), 0).is_some());
            there.next().map(|debt| (debt.counter.clone(), PermitId(0)))
        };
        units.or_else(|| self.permits.any(live))
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
        let mut book = self.book();
        if book.len() < DEBTS_MAX && !book.contains_key(&charge.key) {
            self.insert(&mut book, local, live, (charge, counter()), (0, Refund::default()), now);
        }
    }

    fn insert(
        &self,
        book: &mut BTreeMap<Fingerprint, Debt>,
        local: &Local,
        live: &Live,
        (charge, counter): (&Charge<'_>, Counter),
        (beside, refund): (u64, Refund),
        now: Timestamp,
    ) {
        if let Some(spot) = counter.spot(live, charge) {
            local.mark(&spot, now);
        }
        book.insert(charge.key, Debt { counter, beside, at: now, open: (0, now), refund });
        self.held.store(book.len(), Ordering::Relaxed);
    }

    /// Takes down a charge that was made without the store: a place, or units that [`Debts::begin`] had no room for.
    pub(super) fn add(&self, charge: &Charge<'_>) {
        if matches!(charge.quota, Quota::Concurrency(_)) {
            self.permits.give(charge);
        } else if self.held.load(Ordering::Relaxed) >= DEBTS_MAX && !self.owes(std::slice::from_ref(charge)) {
            self.drop_one();
        }
    }

    /// Records units that an open limit let pass. They may be more than this node's share, which therefore cannot count them.
    pub(super) fn add_open(
        &self,
        local: &Local,
        live: &Live,
        charge: &Charge<'_>,
        counter: impl FnOnce() -> Counter,
        now: Timestamp,
    ) {
        let mut book = self.book();
        if !book.contains_key(&charge.key) {
            if book.len() >= DEBTS_MAX {
                return self.drop_one();
            }
            self.insert(&mut book, local, live, (charge, counter()), (0, Refund::default()), now);
        }
        if let Some(debt) = book.get_mut(&charge.key) {
            debt.open = (still_open(charge, debt.open, now).saturating_add(charge.cost), now);
        }
    }

    /// Takes back units that an open limit let pass and another limit then refused.
    pub(super) fn take_back_open(&self, charge: &Charge<'_>) {
        if let Some(debt) = self.book().get_mut(&charge.key) {
            debt.open.0 = debt.open.0.saturating_sub(charge.cost);
        }
    }

    /// Counts up what is owed before the shares that it is counted by are replaced. It does not fade any more.
    pub(super) fn carry(&self, local: &Local, live: &Live, now: Timestamp) {
        if !self.holds_units() {
            return;
        }
        for debt in self.book().values_mut().filter(|debt| debt.counter.has_share()) {
            debt.beside = self.owed(local, live, debt, now);
            (debt.at, debt.open) = (now, (0, now));
            if let Some(charge) = debt.counter.charge(live, PermitId(0), 0)
                && let Some(spot) = debt.counter.spot(live, &charge)
            {
                local.mark(&spot, now);
            }
        }
    }

    /// Takes down what the store could not give back, and was given back here.
    pub(super) fn add_refund(
        &self,
        local: &Local,
        live: &Live,
        charge: &Charge<'_>,
        counter: Counter,
        now: Timestamp,
    ) {
        let refund = Refund { units: charge.cost, earliest: charge.charged.earliest(now) };
        let mut book = self.book();
        if let Some(debt) = book.get_mut(&charge.key) {
            debt.refund = debt.refund.and(refund);
        } else if book.len() >= DEBTS_MAX {
            self.drop_one();
        } else {
            self.insert(&mut book, local, live, (charge, counter), (0, refund), now);
        }
    }

    /// Forgets what a counter owes.
    pub(super) fn forget(&self, charge: &Charge<'_>) {
        self.permits.forget(charge.key);
        if self.holds_units() {
            let mut book = self.book();
            book.remove(&charge.key);
            self.held.store(book.len(), Ordering::Relaxed);
        }
    }

    /// Drops everything, as when keys are no longer what they were.
    pub(super) fn drop_all(&self) {
        let mut book = self.book();
        self.dropped.fetch_add((book.len() + self.permits.clear()) as u64, Ordering::Relaxed);
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
        let debtors: Vec<Fingerprint> = match of {
            Some(charges) => charges.iter().map(|charge| charge.key).collect(),
            None => book.keys().take(most).copied().collect(),
        };
        let mut due = Vec::new();
        for debtor in debtors {
            let Some(debt) = book.remove(&debtor) else { continue };
            let units = self.owed(local, live, &debt, now);
            if units > 0 {
                self.begin_report(debtor);
                due.push((What::Units(debt.counter.clone(), units), Some(debtor)));
            }
            if debt.refund.units > 0 {
                due.push((What::Refund(debt.counter, debt.refund), None));
            }
        }
        self.held.store(book.len(), Ordering::Relaxed);
        drop(book);
        let permits = self.permits.due(live, of, most.saturating_sub(due.len()), now);
        due.extend(permits.into_iter().map(|owed| (What::Permit(owed), None)));
        due.into_iter().map(|(what, counter)| Due { debts: self, what: Some(what), counter }).collect()
    }

    /// Units that the store must be told of.
    fn owed(&self, local: &Local, live: &Live, debt: &Debt, now: Timestamp) -> u64 {
        // If the limit is gone, so is what it counted.
        let Some(charge) = debt.counter.charge(live, PermitId(0), 0) else { return 0 };
        let Some(spot) = debt.counter.spot(live, &charge) else { return 0 };
        let since = local.since_mark(&spot, now);
        if since.is_none() {
            self.drop_one();
        }
        let open = still_open(&charge, debt.open, now);
        let counted = debt.beside.saturating_add_signed(since.unwrap_or(0));
        counted.saturating_add(open).min(charge.quota.capacity())
    }

    /// Takes down again what the store was not asked for after all.
    fn put_back(&self, local: &Local, live: &Live, what: What, now: Timestamp) {
        let (counter, beside, refund) = match what {
            What::Units(counter, units) => (counter, units, Refund::default()),
            What::Refund(counter, refund) => (counter, 0, refund),
            What::Permit(_) => return, // It stays until the store has answered.
        };
        let of = counter.clone();
        let Some(charge) = of.charge(live, PermitId(0), 0) else { return };
        let mut book = self.book();
        match book.get_mut(&charge.key) {
            Some(debt) => {
                debt.beside = debt.beside.saturating_add(beside);
                debt.refund = debt.refund.and(refund);
            }
            None => self.insert(&mut book, local, live, (&charge, counter), (beside, refund), now),
        }
    }
}

/// What still counts of the units that an open limit let pass, taken to have passed with the last of them.
fn still_open(charge: &Charge<'_>, (units, latest): (u64, Timestamp), now: Timestamp) -> u64 {
    charge.quota.still_counted(units, latest, now)
}

impl Due<'_> {
    /// Whether the units are to be given back.
    pub(super) fn is_refund(&self) -> bool {
        matches!(self.what, Some(What::Refund(..)))
    }

    /// The charge that tells it. What several requests gave back has no one instant, but an earliest.
    pub(super) fn charge<'c>(&'c self, live: &'c Live, now: Timestamp) -> Option<Charge<'c>> {
        match self.what.as_ref()? {
            What::Units(counter, units) => counter.charge(live, PermitId(0), *units),
            What::Refund(counter, refund) => {
                let charged = Charged::Within(now.since(refund.earliest));
                Some(counter.charge(live, PermitId(0), refund.units)?.of(charged))
            }
            What::Permit(Owed { name, counter, units }) => counter.charge(live, name.1, *units),
        }
    }

    /// The place that it tells of, if it is one.
    fn permit(&self) -> Option<Name> {
        match &self.what {
            Some(What::Permit(owed)) => Some(owed.name),
            _ => None,
        }
    }

    /// The store knows.
    pub(super) fn paid(mut self, now: Timestamp) {
        if let Some(name) = self.permit() {
            self.debts.permits.reported(&name, now);
        }
        self.what = None;
        self.debts.replayed.fetch_add(1, Ordering::Relaxed);
    }

    /// The store was not asked.
    pub(super) fn put_back(mut self, local: &Local, live: &Live, now: Timestamp) {
        if let Some(what) = self.what.take() {
            self.debts.put_back(local, live, what, now);
        }
    }
}

impl Drop for Due<'_> {
    fn drop(&mut self) {
        if let Some(counter) = self.counter {
            self.debts.end_report(counter);
        }
        // The store may know or not. It is not told twice, but for a place, which has a name.
        if matches!(self.what, Some(What::Units(..) | What::Refund(..))) {
            self.debts.drop_one();
        }
    }
}
