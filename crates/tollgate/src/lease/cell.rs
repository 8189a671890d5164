//! The lease of one key on this node: its units, its expiry and its remembered denials. Spending takes no
//! lock.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use super::Loan;
use super::acquisitions::{Acquisition, Acquisitions};
use super::demand::share::{FairShare, Need, Received};
use super::demand::{LeaseRequest, LocalDemand};
use super::deny_cache::DenyCache;
use super::renewal::RenewalGuard;
use crate::outcome::{Outcome, Verdict};
use crate::quota::Quota;
use crate::store::{Charge, Lease};
use crate::time::{Ticks, Timestamp};

/// The longest time that a denial is remembered. A refund or reset by another node is noticed within it.
const DENIAL_MAX: Ticks = Ticks::from_millis(900);
/// Smaller leases are not acquired: the next request can ask the store itself.
const SIZE_MIN: u64 = 2;
/// Added to a remembered retry time, because the store computed it slightly later than the request was sent.
const STORE_LATENCY: Ticks = Ticks::from_millis(1);

/// Spent units are reported once they make up a lease divided by this.
const REPORT_FRACTION: u64 = 4;

/// The lease of one key.
pub(super) struct Cell<R> {
    /// The number of the quota in its family. The lease is void under any other quota.
    pub(super) number: u32,
    /// The family of the counter.
    pub(super) family: u64,
    pub(super) lease: Lease,
    units: AtomicU64,
    /// The balance that `units` would have if only the reported units had been spent. Kept as a second balance, so that
    /// spending writes a single word.
    reported_balance: AtomicU64,
    /// When the units expire.
    expires_at: AtomicU64,
    /// Identifies the lease. It changes when all units are drained, and stays the same across renewals.
    generation: AtomicU64,
    /// When the oldest held unit was acquired, by the counter's clock.
    acquired_at: AtomicU64,
    /// Whether the counter was reset. Units acquired before the reset are discarded.
    is_reset: AtomicBool,
    /// The size of the last request, from which the renewal threshold follows.
    size: AtomicU64,
    /// Whether the last renewal brought less than was requested.
    is_scarce: AtomicBool,
    /// Whether the cell was removed from the map. Units that a renewal still brings are returned.
    is_removed: AtomicBool,
    /// Whether the cell is queued for renewal.
    pub(super) is_renewal_queued: AtomicBool,
    requested_units: AtomicU64,
    /// The units that requests wait for while a renewal is in flight.
    waiting_units: AtomicU64,
    /// Counts units of all keys that were requested and whose answer never came.
    pub(super) unanswered_units: Arc<AtomicU64>,
    last_outcome: LastOutcome,
    deny_cache: DenyCache,
    state: Mutex<CellState<R>>,
}

/// The parameters of a renewal.
#[derive(Clone, Copy)]
pub(super) struct Renewal<'q> {
    pub(super) quota: &'q Quota,
    pub(super) cost: u64,
    /// The units requested beyond the charge.
    pub(super) request: LeaseRequest,
    pub(super) sent: Timestamp,
    /// Whether all limits admitted the request.
    pub(super) is_admitted: bool,
}

/// Identifies the spent units, in case the request must put them back.
#[derive(Clone, Copy, Default)]
pub(super) struct SpendToken {
    /// The lease that the units belong to; 0 for none.
    generation: u64,
    /// When the oldest held unit was acquired. No spent unit is older.
    pub(super) acquired_at: Timestamp,
}

/// Units to return, with the receipt to return them by.
pub(super) struct Unspent<R> {
    pub(super) receipt: R,
    pub(super) units: u64,
    pub(super) acquired_at: Timestamp,
}

/// Everything that a cell held.
pub(super) struct Drained<R> {
    pub(super) unspent: Vec<Unspent<R>>,
    /// Units that cannot be returned.
    pub(super) stranded: u64,
}

/// The state of the counter at the last renewal.
#[derive(Default)]
struct LastOutcome {
    remaining: AtomicU64,
    next_at: AtomicU64,
    reset_at: AtomicU64,
}

/// The part of a cell behind its lock.
pub(super) struct CellState<R> {
    pub(super) is_renewing: bool,
    /// The number of started renewals, and the number of the last failed one.
    pub(super) started: u64,
    pub(super) failed: u64,
    /// The number of the last completed renewal, and whether it found the counter empty.
    pub(super) completed: u64,
    found_empty: bool,
    pub(super) wakers: Vec<Waker>,
    pub(super) receipt: Option<R>,
    /// The window that the units belong to; 0 for quotas without windows.
    window: u64,
    acquisitions: Acquisitions,
    demand: LocalDemand,
    share: FairShare,
}

impl<R: Clone> Cell<R> {
    pub(super) fn new(
        charge: &Charge<'_>,
        lease: Lease,
        unanswered_units: &Arc<AtomicU64>,
        now: Timestamp,
    ) -> Self {
        let state = CellState {
            is_renewing: false,
            started: 0,
            failed: 0,
            completed: 0,
            found_empty: false,
            wakers: Vec::new(),
            receipt: None,
            window: 0,
            acquisitions: Acquisitions::default(),
            demand: LocalDemand::new(now),
            share: FairShare::default(),
        };
        Self {
            number: charge.number(),
            family: charge.family().id(),
            lease,
            units: AtomicU64::new(0),
            reported_balance: AtomicU64::new(0),
            expires_at: AtomicU64::new(0),
            generation: AtomicU64::new(1),
            acquired_at: AtomicU64::new(0),
            is_reset: AtomicBool::new(false),
            size: AtomicU64::new(0),
            is_scarce: AtomicBool::new(false),
            is_removed: AtomicBool::new(false),
            is_renewal_queued: AtomicBool::new(false),
            requested_units: AtomicU64::new(0),
            waiting_units: AtomicU64::new(0),
            unanswered_units: Arc::clone(unanswered_units),
            last_outcome: LastOutcome::default(),
            deny_cache: DenyCache::default(),
            state: Mutex::new(state),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, CellState<R>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the cell serves this charge: same quota, same lease bounds.
    #[inline]
    pub(super) fn is_of(&self, charge: &Charge<'_>) -> bool {
        self.number == charge.number() && charge.lease() == Some(self.lease)
    }

    /// Whether the cell was removed from the map.
    #[inline]
    pub(super) fn is_removed(&self) -> bool {
        self.is_removed.load(Ordering::Acquire)
    }

    /// Marks the cell as removed. Set before the units are drained, so that a late renewal sees the flag and
    /// returns its units.
    pub(super) fn mark_removed(&self) {
        self.is_removed.store(true, Ordering::Release);
    }

    /// The held units.
    pub(super) fn units(&self) -> u64 {
        self.units.load(Ordering::Relaxed)
    }

    /// Whether the demand at the last renewal was high enough to lease units.
    pub(super) fn is_leased(&self) -> bool {
        self.size.load(Ordering::Relaxed) >= SIZE_MIN
    }

    pub(super) fn has_expired(&self, now: Timestamp) -> bool {
        self.expires_at.load(Ordering::Acquire) <= now.unix_micros()
    }

    pub(super) fn can_spend(&self, cost: u64, now: Timestamp) -> bool {
        self.units() >= cost && !self.has_expired(now)
    }

    /// Spends units, all or none. Returns how many are left.
    pub(super) fn spend(&self, cost: u64, now: Timestamp) -> Option<u64> {
        if self.has_expired(now) {
            return None;
        }
        let taken =
            self.units.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |units| units.checked_sub(cost));
        let before = taken.ok()?;
        self.requested_units.fetch_add(cost, Ordering::Relaxed);
        Some(before - cost)
    }

    /// Whether so few units are left that the cell should be renewed. False while the counter is scarce, since an early
    /// renewal would take units that other nodes wait for.
    pub(super) fn runs_low(&self, left: u64) -> bool {
        left.saturating_mul(4) < self.size.load(Ordering::Relaxed) && !self.is_scarce.load(Ordering::Relaxed)
    }

    /// Puts spent units back, unless their lease has been drained since.
    pub(super) fn put_back(&self, cost: u64, token: SpendToken) {
        let mut state = self.lock();
        if self.generation.load(Ordering::Relaxed) == token.generation {
            let held = self.units.fetch_add(cost, Ordering::AcqRel) + cost;
            state.acquisitions.put_back(token.acquired_at, held);
            self.acquired_at.store(state.acquisitions.oldest().unix_micros(), Ordering::Release);
        }
        let less = |units: u64| Some(units.saturating_sub(cost));
        let _ = self.requested_units.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// Adds held units. Called under the lock.
    fn add_units(&self, units: u64) {
        // In this order: a reader that sees the second write also sees the first, so no unspent unit is
        // reported.
        self.units.fetch_add(units, Ordering::AcqRel);
        self.reported_balance.fetch_add(units, Ordering::AcqRel);
    }

    /// Takes all held units. Called under the lock.
    fn take_units(&self) -> u64 {
        // In reverse order, for the same reason.
        let reported_balance = self.reported_balance.swap(0, Ordering::AcqRel);
        let units = self.units.swap(0, Ordering::AcqRel);
        self.reported_balance.fetch_add(reported_balance.saturating_sub(units), Ordering::AcqRel);
        // A request that wants to put units back sees that the lease has changed.
        self.generation.fetch_add(1, Ordering::AcqRel);
        units
    }

    /// Takes the spent units that no answer has reported yet. Returns 0 until they make up a
    /// [`REPORT_FRACTION`]th of a lease.
    pub(super) fn take_unreported(&self) -> u32 {
        // Acquire, and read before `units`: units added to this balance are then in both.
        let reported_balance = self.reported_balance.load(Ordering::Acquire);
        let spent = reported_balance.saturating_sub(self.units());
        if spent == 0 || spent < self.size.load(Ordering::Relaxed) / REPORT_FRACTION {
            return 0;
        }
        let reported = u32::try_from(spent).unwrap_or(u32::MAX);
        let left = reported_balance - u64::from(reported);
        // Only one of several concurrent requests reports them.
        let is_first = self
            .reported_balance
            .compare_exchange(reported_balance, left, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok();
        if is_first { reported } else { 0 }
    }

    /// Takes the spent units that no answer will report. For a removed cell.
    pub(super) fn take_all_unreported(&self) -> u64 {
        let _state = self.lock();
        let units = self.units();
        self.reported_balance.swap(units, Ordering::AcqRel).saturating_sub(units)
    }

    /// Takes over the unreported units of a previous cell of the key. Called before the first unit is spent.
    pub(super) fn inherit_unreported(&self, unreported: u64) {
        self.reported_balance.fetch_add(unreported, Ordering::AcqRel);
    }

    /// The token for units about to be spent. Read before spending, so that it is never later than the units.
    pub(super) fn spend_token(&self) -> SpendToken {
        let generation = self.generation.load(Ordering::Acquire);
        let acquired_at = Timestamp::from_unix_micros(self.acquired_at.load(Ordering::Acquire));
        SpendToken { generation, acquired_at }
    }

    /// Marks the counter as reset: held units, and units of a renewal in flight, are discarded.
    pub(super) fn mark_reset(&self) {
        self.is_reset.store(true, Ordering::Release);
    }

    pub(super) fn is_reset(&self) -> bool {
        self.is_reset.load(Ordering::Acquire)
    }

    /// Transfers the units to the cell of another quota of the same counter, at most `units_max`. The units
    /// were debited and the new quota keeps counting from there. Returns the units that did not fit, or
    /// `None` if the units belong to a window, since the new quota may have other windows.
    pub(super) fn transfer_to(&self, to: &Self, units_max: u64) -> Option<u64> {
        let mut state = self.lock();
        if state.window != 0 {
            return None;
        }
        let expires_at = self.expires_at.swap(0, Ordering::AcqRel);
        let units = self.take_units();
        let acquisitions = std::mem::take(&mut state.acquisitions);
        drop(state);
        let mut other = to.lock();
        other.acquisitions = acquisitions;
        to.acquired_at.store(other.acquisitions.oldest().unix_micros(), Ordering::Release);
        to.add_units(units.min(units_max));
        to.expires_at.store(expires_at, Ordering::Release);
        Some(units.saturating_sub(units_max))
    }

    /// The state of the counter as of the last renewal, plus the held units.
    pub(super) fn outcome(&self, quota: &Quota, now: Timestamp) -> Outcome {
        let limit = quota.capacity();
        let remaining =
            self.last_outcome.remaining.load(Ordering::Relaxed).saturating_add(self.units()).min(limit);
        self.outcome_with(Verdict::Allow, limit, remaining, now)
    }

    fn outcome_with(&self, verdict: Verdict, limit: u64, remaining: u64, now: Timestamp) -> Outcome {
        let until = |at: &AtomicU64| Timestamp::from_unix_micros(at.load(Ordering::Relaxed)).since(now);
        Outcome {
            verdict,
            limit,
            remaining,
            next_unit_after: until(&self.last_outcome.next_at),
            reset_after: until(&self.last_outcome.reset_at),
        }
    }

    /// Whether a remembered denial applies to this charge.
    pub(super) fn denies(&self, charge: &Charge<'_>, now: Timestamp) -> bool {
        self.deny_cache.denies(charge.cost(), now)
    }

    /// The remembered denial that applies to this charge.
    pub(super) fn denial(&self, charge: &Charge<'_>, now: Timestamp) -> Option<Outcome> {
        let retry_at = self.deny_cache.retry_at(charge.cost(), now)?;
        self.requested_units.fetch_add(charge.cost(), Ordering::Relaxed);
        Some(self.denied_outcome(retry_at, charge, now))
    }

    fn denied_outcome(&self, retry_at: Timestamp, charge: &Charge<'_>, now: Timestamp) -> Outcome {
        let retry_after = (retry_at + STORE_LATENCY).since(now).max(Ticks::from_micros(1));
        let remaining =
            self.last_outcome.remaining.load(Ordering::Relaxed).min(charge.cost().saturating_sub(1));
        self.outcome_with(Verdict::Deny { retry_after }, charge.quota().capacity(), remaining, now)
    }

    /// The denial for requests that waited for a renewal which started after they arrived and did not bring
    /// enough.
    pub(super) fn denial_after(&self, since: u64, charge: &Charge<'_>, now: Timestamp) -> Option<Outcome> {
        let state = self.lock();
        let retry_at = self.deny_cache.last_retry_at(charge.cost())?;
        let is_denied = state.completed > since && state.found_empty;
        is_denied.then(|| self.denied_outcome(retry_at, charge, now))
    }

    /// Whether a renewal failed that started after number `since`. Then the store is unavailable, and waiting
    /// for another renewal is pointless.
    pub(super) fn has_failed_since(&self, since: u64) -> bool {
        self.lock().failed > since
    }

    /// Starts a renewal, unless one is in flight. On the first call, `since` becomes the number of renewals
    /// that started before.
    pub(super) fn try_start_renewal(
        self: &Arc<Self>,
        since: &mut Option<u64>,
        cost: u64,
    ) -> Option<RenewalGuard<R>> {
        let mut state = self.lock();
        if since.is_none() {
            *since = Some(state.started);
            self.requested_units.fetch_add(cost, Ordering::Relaxed);
        }
        if state.is_renewing {
            return None;
        }
        state.is_renewing = true;
        state.started += 1;
        Some(RenewalGuard::new(Arc::clone(self), state.started))
    }

    pub(super) fn add_waiter(&self, cost: u64) {
        self.waiting_units.fetch_add(cost, Ordering::Relaxed);
    }

    pub(super) fn remove_waiter(&self, cost: u64) {
        self.waiting_units.fetch_sub(cost, Ordering::Relaxed);
    }

    /// The next lease request: the demand of one lease lifetime plus the units of waiters, within the bounds
    /// of the lease. Empty for quiet keys. Where demand exceeds what is available, the fair share of this
    /// node.
    pub(super) fn next_request(&self, quota: &Quota, cost: u64, nodes: u32, now: Timestamp) -> LeaseRequest {
        let state = &mut *self.lock();
        let asked = self.requested_units.swap(0, Ordering::Relaxed);
        let size = state.demand.update(asked, self.lease.ttl(), now);
        let units_max = self.lease.most(quota, nodes);
        let size = size.saturating_add(self.waiting_units.load(Ordering::Relaxed)).min(units_max);
        let held = if self.has_expired(now) && state.window != 0 { 0 } else { self.units() };
        self.size.store(size, Ordering::Relaxed);
        let wanted = if size < SIZE_MIN { 0 } else { size.saturating_sub(held) };
        let need = Need { quota, cost, asked, wanted, units_max: units_max.saturating_sub(held), nodes };
        state.share.request(need, &state.demand, self.lease.ttl())
    }

    /// Applies what a renewal brought. Returns the units that expired with their window.
    pub(super) fn apply_loan(&self, renewal: Renewal<'_>, loan: Loan<R>) -> u64 {
        let Renewal { quota, cost, request, sent, is_admitted } = renewal;
        let has_acquired = is_admitted && (cost > 0 || loan.extra > 0);
        let state = &mut *self.lock();
        let outcome = loan.answer.outcome;
        let at = |after: Ticks| (sent + after).unix_micros();
        self.last_outcome.remaining.store(outcome.remaining, Ordering::Relaxed);
        self.last_outcome.next_at.store(at(outcome.next_unit_after), Ordering::Relaxed);
        self.last_outcome.reset_at.store(at(outcome.reset_after), Ordering::Relaxed);
        let expired = if has_acquired { self.add_loan(state, quota, sent, &loan) } else { 0 };
        // The receipt must match the held units. That of a request that acquired nothing may name another window.
        if let Some(receipt) = loan.receipt.filter(|_| has_acquired || state.receipt.is_none()) {
            state.receipt = Some(receipt);
        }
        self.is_renewal_queued.store(false, Ordering::Relaxed);
        let is_charged = is_admitted && outcome.is_allowed();
        let received = Received {
            quota,
            taken: loan.extra + if is_charged { cost } else { 0 },
            remaining: outcome.remaining,
            is_complete: loan.extra >= request.units,
            fleet_demand: loan.fleet_demand,
            sent,
            reset_after: outcome.reset_after,
        };
        let lasts_for = state.share.record(received, &state.demand, self.lease.ttl());
        let denied = match outcome.verdict {
            Verdict::Deny { retry_after } => {
                Some((cost.max(1), retry_after.max(self.retry_pause(state, quota))))
            }
            // The node has received its share, and asks again when the next units are due.
            Verdict::Allow | Verdict::Wait(_) if is_charged && lasts_for.is_some() => {
                Some((cost.max(1), lasts_for.unwrap_or(Ticks::ZERO).min(DENIAL_MAX)))
            }
            // Only an empty counter certainly denies. A counter that lent too little, or nothing because another
            // limit denied the request, may have units for the next request.
            Verdict::Allow | Verdict::Wait(_)
                if has_acquired && outcome.remaining == 0 && request.units > 0 =>
            {
                Some((1, outcome.next_unit_after.max(self.retry_pause(state, quota))))
            }
            _ => None,
        };
        state.found_empty = denied.is_some();
        if is_admitted {
            self.is_scarce.store(loan.extra < request.units || lasts_for.is_some(), Ordering::Relaxed);
        }
        match denied {
            Some((cost, retry_after)) => {
                self.deny_cache.remember(cost, sent + retry_after, sent + retry_after.min(DENIAL_MAX));
            }
            // Requests that cost at most as much as this one may pass; the denials of costlier ones stay.
            None => self.deny_cache.forget_up_to(cost),
        }
        expired
    }

    /// Adds the lent units. Returns the units that expired because the counter is in another window.
    fn add_loan(&self, state: &mut CellState<R>, quota: &Quota, sent: Timestamp, loan: &Loan<R>) -> u64 {
        let Some(window) = loan.window else { return 0 };
        let mut expired = 0;
        if state.window != window {
            expired = self.take_units();
            state.acquisitions = Acquisitions::default();
            self.expires_at.store(0, Ordering::Release);
            state.window = window;
        }
        if loan.extra > 0 || self.units() > 0 {
            let ttl = self.lease.ttl();
            let life = if window == 0 { ttl } else { ttl.min(loan.answer.outcome.reset_after) };
            // However often a lease is renewed, no unit of it is spent later than this: refunds by age rely on it.
            let since = state.acquisitions.held_since(self.units()).unwrap_or(sent);
            let expires_at = (sent + life).min(since + self.lease.held_for());
            self.expires_at.store(expires_at.unix_micros(), Ordering::Release);
            if loan.extra > 0 {
                let acquisition = Acquisition { at: loan.answer.counted_at(quota), units: loan.extra, sent };
                state.acquisitions.add(acquisition, self.units());
                // Stored before the units can be spent, so that no spend token is later than its units.
                self.acquired_at.store(state.acquisitions.oldest().unix_micros(), Ordering::Release);
            }
            self.add_units(loan.extra);
        }
        expired
    }

    /// The minimum pause before the node asks again after the counter was found empty.
    fn retry_pause(&self, state: &CellState<R>, quota: &Quota) -> Ticks {
        state.share.pause(quota, self.size.load(Ordering::Relaxed)).min(self.lease.ttl()).min(DENIAL_MAX)
    }

    /// Forgets all denials.
    pub(super) fn clear_denials(&self) {
        let _state = self.lock();
        self.deny_cache.forget();
    }

    /// Drains all units, with the receipts to return them by.
    pub(super) fn drain(&self) -> Drained<R> {
        let mut state = self.lock();
        self.expires_at.store(0, Ordering::Release);
        let units = self.take_units();
        let acquisitions = state.acquisitions.take(units);
        let unspent: Vec<_> = match &state.receipt {
            Some(receipt) => {
                let each = acquisitions.into_iter().filter(|acquisition| acquisition.units > 0);
                each.map(|Acquisition { at, units, .. }| Unspent {
                    receipt: receipt.clone(),
                    units,
                    acquired_at: at,
                })
                .collect()
            }
            None => Vec::new(),
        };
        let returned: u64 = unspent.iter().map(|left| left.units).sum();
        Drained { unspent, stranded: units.saturating_sub(returned) }
    }

    /// When to sweep the cell next. Held units do not expire before that, and units acquired later expire no
    /// earlier than a lease from now, or end with their window and cannot be returned.
    pub(super) fn sweep_at(&self, now: Timestamp) -> Timestamp {
        let expires_at = Timestamp::from_unix_micros(self.expires_at.load(Ordering::Acquire));
        if self.units() > 0 && expires_at > now { expires_at } else { now + self.lease.ttl() }
    }

    /// Whether the cell can be removed.
    pub(super) fn is_idle(&self, now: Timestamp) -> bool {
        let state = self.lock();
        // Demand is not updated while a key is denied. Keep it for requests right after the denial.
        let last =
            state.demand.updated_at().max(self.deny_cache.until()) + self.lease.ttl() + self.lease.ttl();
        !state.is_renewing && self.units() == 0 && last < now
    }
}
