//! Leases: units that a node acquires from a shared counter ahead of time and spends locally. Units are debited when
//! they are acquired, so all nodes together never admit more than the counter did. Unspent units are returned.
//!
//! [`LeasedStore`] wraps a store that lends ([`Lender`]) and is a store itself. Charges of quiet keys go to the inner
//! store. Busy keys are charged to a local lease, and denied keys are denied locally until they may pass again.
//! Nothing here waits or reads a clock: the owner calls [`LeasedStore::maintain`] every few milliseconds.

mod store;
mod map;
mod thread_cache;
mod cell;
mod deny_cache;
mod acquisitions;
mod hot_keys;
mod demand;
mod renewal;
mod memory_lender;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::outcome::{Outcome, Source};
use crate::quota::Quota;
use crate::store::{Answers, Charge, ChargeAnswer, Enforcement, Store, StoreFailure};
use crate::time::Timestamp;

use cell::{Cell, Renewal, SpendToken};
pub use demand::{LeaseRequest, SHARE_SCALE};
use map::LeaseMap;
pub use map::{Holding, LeaseReport};
pub use memory_lender::MemoryLender;
use renewal::RenewalGuard;

/// The assumed number of nodes while the store does not know it.
const NODES_UNKNOWN: u32 = 3;
/// How often a request waits for another request's renewal before it asks the store itself.
const WAITS_MAX: usize = 2;

/// A store's answer to a charge and a lease request.
#[derive(Clone, Debug)]
pub struct Loan<R> {
    /// The answer to the charge.
    pub answer: ChargeAnswer,
    /// The units lent beyond the charge.
    pub extra: u64,
    /// The number of the window that lent them; 0 for quotas without windows. Units expire with their window. None if
    /// no units were requested.
    pub window: Option<u64>,
    /// Needed to return units and to renew the lease. None if the units cannot be returned.
    pub receipt: Option<R>,
    /// The reported demand of all nodes for this counter in units per second, if it is known.
    pub fleet_demand: Option<u64>,
}

/// The number of the window that an answer was counted in, by its end; 0 for quotas without windows. The answer must
/// have counted something.
#[must_use]
pub fn window_of(quota: &Quota, answer: &ChargeAnswer, now: Timestamp) -> u64 {
    match quota {
        Quota::FixedWindow(_) => (now + answer.outcome.reset_after).unix_micros(),
        _ => 0,
    }
}

/// One loan for each charge, in order.
pub type Loans<R> = SmallVec<[Loan<R>; 6]>;

/// A store that lends units.
pub trait Lender: Store {
    /// Identifies the counter that lent units, its quota and its window, so that the units can be returned.
    type Receipt: Clone + Send + Sync + 'static;

    /// Charges as [`Store::charge`] does. If all charges pass, it also lends the requested units, as far as they are
    /// available. Reported demand counts in any case.
    fn lend(
        &self,
        charges: &[Charge<'_>],
        requests: &[LeaseRequest],
        now: Timestamp,
    ) -> impl Future<Output = Result<Loans<Self::Receipt>, StoreFailure>> + Send;

    /// The quota of a receipt.
    fn quota_of<'r>(&self, receipt: &'r Self::Receipt) -> &'r Quota;

    /// Lends more units of a counter that has lent before.
    fn lend_more(
        &self,
        receipt: &Self::Receipt,
        request: LeaseRequest,
        now: Timestamp,
    ) -> impl Future<Output = Result<Loan<Self::Receipt>, StoreFailure>> + Send;

    /// Returns units that were acquired at an instant of the counter's clock. The store drops units that would free
    /// more than they used. It is called once for each unit: a return that may have succeeded is not retried.
    fn return_units(
        &self,
        receipt: &Self::Receipt,
        units: u64,
        acquired_at: Timestamp,
        now: Timestamp,
    ) -> impl Future<Output = Result<(), StoreFailure>> + Send;
}

/// A store that charges local leases before it asks the inner store.
pub struct LeasedStore<S: Lender> {
    store: S,
    map: LeaseMap<S::Receipt>,
    nodes_min: u32,
}

type CellOf<S> = Arc<Cell<<S as Lender>::Receipt>>;
type CellsOf<'d, S> = SmallVec<[&'d CellOf<S>; 6]>;

/// The local result of one charge.
enum LocalResult<R> {
    /// It was charged to this lease.
    Charged(Arc<Cell<R>>, SpendToken),
    /// A remembered denial of this cell applies.
    Denied(Arc<Cell<R>>, Outcome),
    /// The store must be asked. The cell of the key, if it has one.
    Miss(Option<Arc<Cell<R>>>),
}

/// Whether the charges to leases stand or were put back.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Settlement {
    Kept,
    PutBack,
}

impl<S: Lender> LeasedStore<S> {
    /// Leases at most `keys_max` keys at a time. Charges of further keys go to the store.
    pub fn new(store: S, keys_max: usize) -> Self {
        Self { store, map: LeaseMap::new(keys_max), nodes_min: 0 }
    }

    /// Sizes leases for at least this many nodes, even if the store sees fewer.
    #[must_use]
    pub fn expect_nodes(mut self, nodes: u32) -> Self {
        self.nodes_min = nodes;
        self
    }

    /// The inner store.
    pub const fn store(&self) -> &S {
        &self.store
    }

    /// Units held by the leases, and counters of their operations.
    pub fn report(&self) -> LeaseReport {
        self.map.report()
    }

    /// The leases of each limit, by the [number](crate::store::Family::id) of its family. It visits all keys, so call
    /// it rarely.
    pub fn holdings(&self) -> HashMap<u64, Holding> {
        self.map.holdings()
    }

    /// Discards what this node holds of counters that another node has reset. The units were debited from a count that
    /// is gone, so they are neither spent nor returned.
    pub fn discard(&self, keys: &[u128]) {
        self.map.discard_cells(keys.iter().copied());
    }

    /// The number of nodes to size leases for.
    fn fleet_size(&self) -> u32 {
        let known = match self.store.nodes() {
            0 => NODES_UNKNOWN,
            nodes => nodes,
        };
        known.max(self.nodes_min)
    }

    /// Drains units that a renewal brought to a cell which was reset or removed in the meantime.
    fn drain_if_removed(&self, cell: &Cell<S::Receipt>) {
        if cell.is_reset() {
            self.map.discard(cell);
        } else if cell.is_removed() {
            self.map.retire(cell);
        }
    }

    /// Charges each lease that has enough units.
    fn charge_leases(
        &self,
        charges: &[Charge<'_>],
        now: Timestamp,
    ) -> SmallVec<[LocalResult<S::Receipt>; 6]> {
        let each = charges.iter().map(|charge| {
            let Some(cell) = self.map.cell(charge) else { return LocalResult::Miss(None) };
            let token = cell.spend_token();
            if let Some(left) = cell.spend(charge.cost(), now) {
                if cell.runs_low(left) {
                    self.map.queue_renewal(&cell);
                }
                return LocalResult::Charged(cell, token);
            }
            match cell.denial(charge, now) {
                Some(denial) => LocalResult::Denied(cell, denial),
                None => LocalResult::Miss(Some(cell)),
            }
        });
        each.collect()
    }

    /// Puts the units of all charged leases back.
    fn put_back(charges: &[Charge<'_>], results: &[LocalResult<S::Receipt>]) {
        for (charge, result) in charges.iter().zip(results) {
            if let LocalResult::Charged(cell, token) = result {
                cell.put_back(charge.cost(), *token);
            }
        }
    }

    /// The answers, if the store need not be asked. Otherwise the leases stay charged.
    fn local_answers(
        &self,
        charges: &[Charge<'_>],
        results: &[LocalResult<S::Receipt>],
        now: Timestamp,
    ) -> Option<Answers> {
        if results.iter().any(|result| matches!(result, LocalResult::Miss(_))) {
            return None;
        }
        let is_denied = charges
            .iter()
            .zip(results)
            .any(|(charge, result)| is_enforced(charge) && matches!(result, LocalResult::Denied(..)));
        let settlement = if is_denied {
            Self::put_back(charges, results);
            self.map.counts.deny_cache_hit();
            Settlement::PutBack
        } else {
            self.map.counts.lease_hit();
            Settlement::Kept
        };
        let each = charges.iter().zip(results);
        Some(each.filter_map(|(charge, result)| local_answer(charge, result, settlement, now)).collect())
    }

    /// The fast path: answers from the thread cache if no charge needs the store. Otherwise nothing is charged, and
    /// the contents of `answers` are meaningless.
    #[inline]
    fn try_charge_leases(&self, charges: &[Charge<'_>], now: Timestamp, answers: &mut Answers) -> Option<()> {
        let mut cache = self.map.thread_cache(charges)?;
        let mut cells = CellsOf::<'_, S>::new();
        let mut is_denied = false;
        for charge in charges {
            let cell = cache.cell(charge)?;
            if !cell.can_spend(charge.cost(), now) {
                if !cell.denies(charge, now) {
                    return None;
                }
                is_denied |= is_enforced(charge);
            }
            cells.push(cell);
        }
        if is_denied {
            denied_answers(charges, &cells, now, answers)?;
        } else {
            self.charge_all(charges, &cells, now, answers)?;
        }
        drop(cells);
        *(if is_denied { &mut cache.deny_cache_hits } else { &mut cache.lease_hits }) += 1;
        Some(())
    }

    /// Charges all leases, except denied limits in shadow mode. None if another thread spent the units first: then
    /// nothing is charged.
    #[inline]
    fn charge_all(
        &self,
        charges: &[Charge<'_>],
        cells: &[&Arc<Cell<S::Receipt>>],
        now: Timestamp,
        answers: &mut Answers,
    ) -> Option<()> {
        let mut tokens = SmallVec::<[SpendToken; 6]>::new();
        for (charge, cell) in charges.iter().zip(cells) {
            let token = cell.spend_token();
            if let Some(left) = cell.spend(charge.cost(), now) {
                if cell.runs_low(left) {
                    self.map.queue_renewal(cell);
                }
                tokens.push(token);
                let outcome = cell.outcome(charge.quota(), now);
                answers.push(answer(outcome, Source::Lease).charged(token.acquired_at));
            } else if let Some(outcome) = cell.denial(charge, now).filter(|_| !is_enforced(charge)) {
                tokens.push(SpendToken::default());
                answers.push(answer(outcome, Source::DenyCache));
            } else {
                let charged = charges.iter().zip(cells).zip(tokens);
                charged.for_each(|((charge, cell), token)| cell.put_back(charge.cost(), token));
                return None;
            }
        }
        for (answer, cell) in answers.iter_mut().zip(cells) {
            if answer.source == Source::Lease {
                answer.unheard = cell.take_unreported();
            }
        }
        Some(())
    }

    /// Charges the store for all but the charged leases, and acquires units of busy keys.
    async fn charge_store(
        &self,
        charges: &[Charge<'_>],
        results: &[LocalResult<S::Receipt>],
        guards: &mut [Option<RenewalGuard<S::Receipt>>],
        now: Timestamp,
    ) -> Result<Answers, StoreFailure> {
        let indexes: SmallVec<[usize; 6]> =
            (0..charges.len()).filter(|&index| !matches!(results[index], LocalResult::Charged(..))).collect();
        let sent: SmallVec<[Charge<'_>; 6]> = indexes.iter().map(|&index| charges[index]).collect();
        let requests: SmallVec<[LeaseRequest; 6]> = indexes
            .iter()
            .map(|&index| self.lease_request(&charges[index], guards[index].as_ref(), now))
            .collect();
        for (&index, request) in indexes.iter().zip(&requests) {
            if let Some(guard) = &mut guards[index] {
                guard.sent(request.units);
            }
        }
        // If the caller is cancelled, the request is denied or the store fails, the charged leases are put back.
        let mut charged = ChargedLeases::<S> { charges, results, is_kept: false };
        let loans = match self.store.lend(&sent, &requests, now).await {
            Ok(loans) if loans.len() == sent.len() => loans,
            result => {
                let failure = result.err().unwrap_or(StoreFailure::Unanswered);
                if failure != StoreFailure::Unanswered {
                    guards.iter_mut().flatten().for_each(RenewalGuard::not_lent);
                }
                return Err(failure);
            }
        };
        self.map.counts.store_charge();
        let is_admitted = sent
            .iter()
            .zip(&loans)
            .all(|(charge, loan)| !is_enforced(charge) || loan.answer.outcome.is_allowed());
        charged.is_kept = is_admitted;
        drop(charged);
        let settlement = if is_admitted { Settlement::Kept } else { Settlement::PutBack };
        let each = charges.iter().zip(results);
        let mut answers: SmallVec<[Option<ChargeAnswer>; 6]> =
            each.map(|(charge, result)| local_answer(charge, result, settlement, now)).collect();
        for ((&index, loan), &request) in indexes.iter().zip(loans).zip(&requests) {
            answers[index] = Some(loan.answer);
            if let Some(guard) = guards[index].take() {
                self.map.counts.acquired(loan.extra);
                let (quota, cost) = (charges[index].quota(), charges[index].cost());
                let cell = Arc::clone(guard.cell());
                let renewal = Renewal { quota, cost, request, sent: now, is_admitted };
                self.map.counts.stranded(guard.complete(renewal, loan));
                self.drain_if_removed(&cell);
            }
        }
        Ok(answers.into_iter().flatten().collect())
    }

    /// The units to acquire beyond a charge. Empty if another request renews the key, or leasing has stopped.
    fn lease_request(
        &self,
        charge: &Charge<'_>,
        guard: Option<&RenewalGuard<S::Receipt>>,
        now: Timestamp,
    ) -> LeaseRequest {
        match guard {
            Some(guard) if !self.map.is_closed() => {
                self.map.drain_expired(guard.cell(), now);
                guard.cell().next_request(charge.quota(), charge.cost(), self.fleet_size(), now)
            }
            _ => LeaseRequest::default(),
        }
    }

    /// The slow path. Renewals are single-flight per key: concurrent requests wait for the one in flight and share its
    /// denial if it started after they arrived.
    async fn charge_slow_path(
        &self,
        charges: &[Charge<'_>],
        now: Timestamp,
    ) -> Result<Answers, StoreFailure> {
        let mut since: SmallVec<[Option<u64>; 6]> = charges.iter().map(|_| None).collect();
        let mut waits = 0;
        loop {
            let results = self.charge_leases(charges, now);
            if let Some(answers) = self.local_answers(charges, &results, now) {
                return Ok(answers);
            }
            let mut guards: SmallVec<[Option<RenewalGuard<S::Receipt>>; 6]> =
                charges.iter().map(|_| None).collect();
            let mut in_flight: Option<(CellOf<S>, usize)> = None;
            for (index, charge) in charges.iter().enumerate() {
                let cell = match &results[index] {
                    LocalResult::Charged(..) => continue,
                    LocalResult::Denied(cell, _) | LocalResult::Miss(Some(cell)) => Arc::clone(cell),
                    LocalResult::Miss(None) => match self.map.insert_cell(charge, now) {
                        Some(cell) => cell,
                        None => continue,
                    },
                };
                match cell.try_start_renewal(&mut since[index], charge.cost()) {
                    Some(guard) => guards[index] = Some(guard),
                    None => in_flight = in_flight.or(Some((cell, index))),
                }
            }
            let Some((cell, index)) = in_flight.filter(|_| waits < WAITS_MAX) else {
                return self.charge_store(charges, &results, &mut guards, now).await;
            };
            Self::put_back(charges, &results);
            drop(guards);
            waits += 1;
            cell.wait_for_renewal(charges[index].cost()).await;
            if since[index].is_some_and(|since| cell.has_failed_since(since.saturating_sub(1))) {
                waits = WAITS_MAX;
            }
            if let Some(answers) = self.shared_denial(charges, &since, now) {
                return Ok(answers);
            }
        }
    }

    /// The denial of a request that waited for a renewal which did not bring enough for all waiters.
    fn shared_denial(
        &self,
        charges: &[Charge<'_>],
        since: &[Option<u64>],
        now: Timestamp,
    ) -> Option<Answers> {
        let ([charge], [Some(since)]) = (charges, since) else { return None };
        let cell = self.map.cell(charge).filter(|_| is_enforced(charge))?;
        if cell.can_spend(charge.cost(), now) {
            return None;
        }
        let outcome = cell.denial_after(*since, charge, now)?;
        self.map.counts.deny_cache_hit();
        Some([answer(outcome, Source::DenyCache)].into_iter().collect())
    }
}

/// The leases that a request charged before it asks the store. Dropping it puts the units back, unless they are kept.
struct ChargedLeases<'a, 'c, S: Lender> {
    charges: &'a [Charge<'c>],
    results: &'a [LocalResult<S::Receipt>],
    is_kept: bool,
}

impl<S: Lender> Drop for ChargedLeases<'_, '_, S> {
    fn drop(&mut self) {
        if !self.is_kept {
            LeasedStore::<S>::put_back(self.charges, self.results);
        }
    }
}

fn is_enforced(charge: &Charge<'_>) -> bool {
    charge.enforcement() == Enforcement::Enforced
}

fn answer(outcome: Outcome, source: Source) -> ChargeAnswer {
    ChargeAnswer::new(outcome, source)
}

/// Builds the answers when at least one lease denies. The others are not charged, so nothing has to be refunded.
fn denied_answers<R: Clone>(
    charges: &[Charge<'_>],
    cells: &[&Arc<Cell<R>>],
    now: Timestamp,
    answers: &mut Answers,
) -> Option<()> {
    for (charge, cell) in charges.iter().zip(cells) {
        answers.push(if cell.can_spend(charge.cost(), now) {
            answer(cell.outcome(charge.quota(), now), Source::Lease)
        } else {
            answer(cell.denial(charge, now)?, Source::DenyCache)
        });
    }
    Some(())
}

/// The answer of a local result. If the charge is kept, the answer reports spent units.
fn local_answer<R: Clone>(
    charge: &Charge<'_>,
    result: &LocalResult<R>,
    settlement: Settlement,
    now: Timestamp,
) -> Option<ChargeAnswer> {
    match result {
        LocalResult::Charged(cell, token) => {
            let unheard = if settlement == Settlement::Kept { cell.take_unreported() } else { 0 };
            let answer = answer(cell.outcome(charge.quota(), now), Source::Lease).charged(token.acquired_at);
            Some(ChargeAnswer { unheard, ..answer })
        }
        LocalResult::Denied(_, outcome) => Some(answer(*outcome, Source::DenyCache)),
        LocalResult::Miss(_) => None,
    }
}
