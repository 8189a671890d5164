//! Deferred charges: units that this process admitted alone and the store does not know yet, and refunds that the store
//! could not make. Each is reported to the store once, when the store answers again.
//!
//! The size of a deferred charge is the difference between what this node's share has used and what it would have used
//! by the store's knowledge. So it shrinks as units come back, and no caller pays for usage that is long over. Refunds
//! are kept apart, each with the earliest instant at which its units may have been charged: netted against later units,
//! a refund would expire with the units that it pays for. Permits are left to [`super::permits`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::counter::Counter;
use super::local::Local;
use super::permits::{PermitKey, UnreportedPermit, UnreportedPermits};
use crate::active::ActivePolicy;
use crate::algorithm::Charged;
use crate::algorithm::concurrency::PermitId;
use crate::key::Fingerprint;
use crate::quota::Quota;
use crate::store::Charge;
use crate::time::Timestamp;

/// Maximum number of counters with deferred charges. Those of further counters are dropped, and the drop is counted.
pub const DEFERRED_MAX: usize = 10_000;

/// The deferred charges of this process.
pub(super) struct Deferred {
    /// The number of entries, readable without the lock.
    held: AtomicUsize,
    entries: Mutex<BTreeMap<Fingerprint, DeferredCharge>>,
    /// The number of counters being reported to the store, readable without the lock.
    reporting: AtomicUsize,
    /// The counters being reported. Until the report has arrived, the store would admit their units again.
    reports: Mutex<BTreeSet<Fingerprint>>,
    pub(super) permits: UnreportedPermits,
    pub(super) settled: AtomicU64,
    pub(super) dropped: AtomicU64,
}

/// The deferred charge of one counter.
#[derive(Clone, Debug)]
pub(super) struct DeferredCharge {
    counter: Counter,
    /// Units in addition to those taken since the counter was marked.
    extra_units: u64,
    /// When the counter was marked.
    at: Timestamp,
    /// Units that the limit admitted while it was open, and when the last of them was admitted.
    open: (u64, Timestamp),
    refund: Refund,
}

/// Units that the store has to refund.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Refund {
    units: u64,
    /// The earliest instant at which one of them may have been charged, by this process's clock.
    earliest: Timestamp,
}

impl Refund {
    /// Adds up two refunds. The earlier instant is kept, which refunds less, never more.
    fn and(self, other: Refund) -> Refund {
        if self.units == 0 {
            return other;
        }
        let (units, earliest) = (self.units.saturating_add(other.units), self.earliest.min(other.earliest));
        Refund { units, earliest }
    }
}

/// One report to the store. Units in a report that is dropped before the store has answered are counted as dropped.
pub(super) struct Due<'d> {
    deferred: &'d Deferred,
    kind: Option<DueKind>,
    /// The counter whose units are reported.
    counter: Option<Fingerprint>,
}

enum DueKind {
    Units(Counter, u64),
    Refund(Counter, Refund),
    Permit(UnreportedPermit),
}

impl Deferred {
    pub(super) fn new() -> Self {
        Self {
            held: AtomicUsize::new(0),
            entries: Mutex::new(BTreeMap::new()),
            reporting: AtomicUsize::new(0),
            reports: Mutex::new(BTreeSet::new()),
            permits: UnreportedPermits::default(),
            settled: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
        }
    }

    fn entries(&self) -> MutexGuard<'_, BTreeMap<Fingerprint, DeferredCharge>> {
        // A panicking thread cannot leave the map half changed: each statement leaves it consistent.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of counters with deferred charges, plus the number of permits that the store has yet to record.
    #[inline]
    pub(super) fn held(&self) -> usize {
        // Relaxed: a thread that misses an entry made just now finds it at its next call.
        self.held.load(Ordering::Relaxed) + self.permits.unreported()
    }

    fn holds_units(&self) -> bool {
        self.held.load(Ordering::Relaxed) > 0
    }

    fn reports(&self) -> MutexGuard<'_, BTreeSet<Fingerprint>> {
        // A panicking thread cannot leave the set half changed: each statement leaves it consistent.
        self.reports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether units of one of these counters are being reported to the store now.
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

    /// Whether one of these counters has deferred units.
    #[inline]
    pub(super) fn has_deferred_units(&self, charges: &[Charge<'_>]) -> bool {
        self.holds_units() && {
            let entries = self.entries();
            charges.iter().any(|charge| entries.contains_key(&charge.key))
        }
    }

    /// Whether one of these counters has deferred units or permits, or is being reported.
    #[inline]
    pub(super) fn has_deferred(&self, charges: &[Charge<'_>]) -> bool {
        self.has_deferred_units(charges) || self.is_reporting(charges) || self.permits.has_unreported(charges)
    }

    /// Whether a counter was marked at this instant or before, so that the store does not know what was charged locally
    /// since.
    pub(super) fn is_marked_since(&self, charge: &Charge<'_>, at: Timestamp) -> bool {
        self.holds_units()
            && self.entries().get(&charge.key).is_some_and(|deferred_charge| deferred_charge.at <= at)
    }

    /// Any counter with a deferred charge, for a look that tests the store.
    pub(super) fn any(&self, active: &ActivePolicy) -> Option<(Counter, PermitId)> {
        let units = {
            let entries = self.entries();
            let mut there = entries
                .values()
                .filter(|deferred_charge| deferred_charge.counter.charge(active, PermitId(0), 0).is_some());
            there.next().map(|deferred_charge| (deferred_charge.counter.clone(), PermitId(0)))
        };
        units.or_else(|| self.permits.any(active))
    }

    /// Marks a counter that is about to be charged without the store. The caller marks it before the charge, so that
    /// the mark contains nothing of it.
    pub(super) fn begin(
        &self,
        local: &Local,
        active: &ActivePolicy,
        charge: &Charge<'_>,
        counter: impl FnOnce() -> Counter,
        now: Timestamp,
    ) {
        let mut entries = self.entries();
        if entries.len() < DEFERRED_MAX && !entries.contains_key(&charge.key) {
            self.insert(&mut entries, local, active, (charge, counter()), (0, Refund::default()), now);
        }
    }

    fn insert(
        &self,
        entries: &mut BTreeMap<Fingerprint, DeferredCharge>,
        local: &Local,
        active: &ActivePolicy,
        (charge, counter): (&Charge<'_>, Counter),
        (extra_units, refund): (u64, Refund),
        now: Timestamp,
    ) {
        if let Some(key_slot) = counter.key_slot(active, charge) {
            local.mark(&key_slot, now);
        }
        entries.insert(charge.key, DeferredCharge { counter, extra_units, at: now, open: (0, now), refund });
        self.held.store(entries.len(), Ordering::Relaxed);
    }

    /// Records a charge that was made without the store: a permit, or units that [`Deferred::begin`] had no room for.
    pub(super) fn add(&self, charge: &Charge<'_>) {
        if matches!(charge.quota, Quota::Concurrency(_)) {
            self.permits.give(charge);
        } else if self.held.load(Ordering::Relaxed) >= DEFERRED_MAX
            && !self.has_deferred_units(std::slice::from_ref(charge))
        {
            self.drop_one();
        }
    }

    /// Records units that an open limit admitted. They may exceed this node's share, so the share cannot count them.
    pub(super) fn add_open(
        &self,
        local: &Local,
        active: &ActivePolicy,
        charge: &Charge<'_>,
        counter: impl FnOnce() -> Counter,
        now: Timestamp,
    ) {
        let mut entries = self.entries();
        if !entries.contains_key(&charge.key) {
            if entries.len() >= DEFERRED_MAX {
                return self.drop_one();
            }
            self.insert(&mut entries, local, active, (charge, counter()), (0, Refund::default()), now);
        }
        if let Some(deferred_charge) = entries.get_mut(&charge.key) {
            deferred_charge.open =
                (still_open(charge, deferred_charge.open, now).saturating_add(charge.cost), now);
        }
    }

    /// Takes back units that an open limit admitted and another limit then denied.
    pub(super) fn take_back_open(&self, charge: &Charge<'_>) {
        if let Some(deferred_charge) = self.entries().get_mut(&charge.key) {
            deferred_charge.open.0 = deferred_charge.open.0.saturating_sub(charge.cost);
        }
    }

    /// Adds up the deferred units before the shares that they are computed from are replaced. From then on they no
    /// longer shrink.
    pub(super) fn carry(&self, local: &Local, active: &ActivePolicy, now: Timestamp) {
        if !self.holds_units() {
            return;
        }
        for deferred_charge in
            self.entries().values_mut().filter(|deferred_charge| deferred_charge.counter.has_share())
        {
            deferred_charge.extra_units = self.due_units(local, active, deferred_charge, now);
            (deferred_charge.at, deferred_charge.open) = (now, (0, now));
            if let Some(charge) = deferred_charge.counter.charge(active, PermitId(0), 0)
                && let Some(key_slot) = deferred_charge.counter.key_slot(active, &charge)
            {
                local.mark(&key_slot, now);
            }
        }
    }

    /// Records a refund that the store could not make and that was made locally.
    pub(super) fn add_refund(
        &self,
        local: &Local,
        active: &ActivePolicy,
        charge: &Charge<'_>,
        counter: Counter,
        now: Timestamp,
    ) {
        let refund = Refund { units: charge.cost, earliest: charge.charged.earliest(now) };
        let mut entries = self.entries();
        if let Some(deferred_charge) = entries.get_mut(&charge.key) {
            deferred_charge.refund = deferred_charge.refund.and(refund);
        } else if entries.len() >= DEFERRED_MAX {
            self.drop_one();
        } else {
            self.insert(&mut entries, local, active, (charge, counter), (0, refund), now);
        }
    }

    /// Drops the deferred charges of one counter.
    pub(super) fn forget(&self, charge: &Charge<'_>) {
        self.permits.forget(charge.key);
        if self.holds_units() {
            let mut entries = self.entries();
            entries.remove(&charge.key);
            self.held.store(entries.len(), Ordering::Relaxed);
        }
    }

    /// Drops all deferred charges, as when keys change their meaning.
    pub(super) fn drop_all(&self) {
        let mut entries = self.entries();
        self.dropped.fetch_add((entries.len() + self.permits.clear()) as u64, Ordering::Relaxed);
        entries.clear();
        self.held.store(0, Ordering::Relaxed);
    }

    fn drop_one(&self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes out the deferred charges of these counters, or of any counters, up to `most`.
    pub(super) fn take(
        &self,
        local: &Local,
        active: &ActivePolicy,
        of: Option<&[Charge<'_>]>,
        most: usize,
        now: Timestamp,
    ) -> Vec<Due<'_>> {
        let mut entries = self.entries();
        let keys: Vec<Fingerprint> = match of {
            Some(charges) => charges.iter().map(|charge| charge.key).collect(),
            None => entries.keys().take(most).copied().collect(),
        };
        let mut due = Vec::new();
        for key in keys {
            let Some(deferred_charge) = entries.remove(&key) else { continue };
            let units = self.due_units(local, active, &deferred_charge, now);
            if units > 0 {
                self.begin_report(key);
                due.push((DueKind::Units(deferred_charge.counter.clone(), units), Some(key)));
            }
            if deferred_charge.refund.units > 0 {
                due.push((DueKind::Refund(deferred_charge.counter, deferred_charge.refund), None));
            }
        }
        self.held.store(entries.len(), Ordering::Relaxed);
        drop(entries);
        let permits = self.permits.due(active, of, most.saturating_sub(due.len()), now);
        due.extend(permits.into_iter().map(|due_units| (DueKind::Permit(due_units), None)));
        due.into_iter().map(|(kind, counter)| Due { deferred: self, kind: Some(kind), counter }).collect()
    }

    /// The units to report to the store.
    fn due_units(
        &self,
        local: &Local,
        active: &ActivePolicy,
        deferred_charge: &DeferredCharge,
        now: Timestamp,
    ) -> u64 {
        // When the limit is gone, what it counted is gone too.
        let Some(charge) = deferred_charge.counter.charge(active, PermitId(0), 0) else { return 0 };
        let Some(key_slot) = deferred_charge.counter.key_slot(active, &charge) else { return 0 };
        let since = local.since_mark(&key_slot, now);
        if since.is_none() {
            self.drop_one();
        }
        let open = still_open(&charge, deferred_charge.open, now);
        let counted = deferred_charge.extra_units.saturating_add_signed(since.unwrap_or(0));
        counted.saturating_add(open).min(charge.quota.capacity())
    }

    /// Records again a report that was not sent after all.
    fn put_back(&self, local: &Local, active: &ActivePolicy, kind: DueKind, now: Timestamp) {
        let (counter, extra_units, refund) = match kind {
            DueKind::Units(counter, units) => (counter, units, Refund::default()),
            DueKind::Refund(counter, refund) => (counter, 0, refund),
            DueKind::Permit(_) => return, // It stays until the store has answered.
        };
        let of = counter.clone();
        let Some(charge) = of.charge(active, PermitId(0), 0) else { return };
        let mut entries = self.entries();
        match entries.get_mut(&charge.key) {
            Some(deferred_charge) => {
                deferred_charge.extra_units = deferred_charge.extra_units.saturating_add(extra_units);
                deferred_charge.refund = deferred_charge.refund.and(refund);
            }
            None => self.insert(&mut entries, local, active, (&charge, counter), (extra_units, refund), now),
        }
    }
}

/// How many of the units that an open limit admitted still count. All are taken to be as late as the last of them.
fn still_open(charge: &Charge<'_>, (units, latest): (u64, Timestamp), now: Timestamp) -> u64 {
    charge.quota.still_counted(units, latest, now)
}

impl Due<'_> {
    /// Whether the report is a refund.
    pub(super) fn is_refund(&self) -> bool {
        matches!(self.kind, Some(DueKind::Refund(..)))
    }

    /// The charge that reports it. Refunds of several requests have no single instant, so the earliest is given.
    pub(super) fn charge<'c>(&'c self, active: &'c ActivePolicy, now: Timestamp) -> Option<Charge<'c>> {
        match self.kind.as_ref()? {
            DueKind::Units(counter, units) => counter.charge(active, PermitId(0), *units),
            DueKind::Refund(counter, refund) => {
                let charged = Charged::Within(now.since(refund.earliest));
                Some(counter.charge(active, PermitId(0), refund.units)?.of(charged))
            }
            DueKind::Permit(UnreportedPermit { permit_key, counter, units }) => {
                counter.charge(active, permit_key.1, *units)
            }
        }
    }

    /// The permit that is reported, if it is one.
    fn permit(&self) -> Option<PermitKey> {
        match &self.kind {
            Some(DueKind::Permit(permit)) => Some(permit.permit_key),
            _ => None,
        }
    }

    /// The store has recorded the report.
    pub(super) fn settle(mut self, now: Timestamp) {
        if let Some(permit_key) = self.permit() {
            self.deferred.permits.reported(&permit_key, now);
        }
        self.kind = None;
        self.deferred.settled.fetch_add(1, Ordering::Relaxed);
    }

    /// The report was not sent.
    pub(super) fn put_back(mut self, local: &Local, active: &ActivePolicy, now: Timestamp) {
        if let Some(kind) = self.kind.take() {
            self.deferred.put_back(local, active, kind, now);
        }
    }
}

impl Drop for Due<'_> {
    fn drop(&mut self) {
        if let Some(counter) = self.counter {
            self.deferred.end_report(counter);
        }
        // The store may have recorded the report or not. Units are not reported twice; a permit is, because it has an
        // id and counts once.
        if matches!(self.kind, Some(DueKind::Units(..) | DueKind::Refund(..))) {
            self.deferred.drop_one();
        }
    }
}
