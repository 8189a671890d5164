//! A lender in memory, for simulations and tests: one set of counters that many nodes share.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::demand::{FleetDemand, Scarcity};
use super::{LeaseRequest, Lender, Loan, Loans, window_of};
use crate::key::{Fingerprint, Secret};
use crate::memory::MemoryStore;
use crate::outcome::{Outcome, Verdict};
use crate::quota::Quota;
use crate::store::{Answers, Charge, Enforcement, Family, Hold, Store, StoreFailure};
use crate::time::Timestamp;

/// Counters in memory that several nodes lease from. Clones share them. A fleet in production shares Redis
/// instead.
#[derive(Clone)]
pub struct MemoryLender {
    memory: Arc<MemoryStore>,
    /// Reported demand of scarce keys. Entries are never removed, since a simulation has few keys.
    fleet_demands: Arc<Mutex<HashMap<Fingerprint, FleetDemand>>>,
    nodes: u32,
}

/// Identifies the counter that lent the units.
#[derive(Clone)]
pub struct MemoryReceipt {
    key: Fingerprint,
    number: u32,
    owner: Arc<(Family, Quota)>,
}

impl MemoryReceipt {
    fn charge(&self, cost: u64) -> Charge<'_> {
        let (family, quota) = &*self.owner;
        Charge::new(self.key, family, self.number, quota, cost)
    }
}

impl MemoryLender {
    /// Counters shared by `nodes` nodes.
    #[must_use]
    pub fn new(memory: MemoryStore, nodes: u32) -> Self {
        Self { memory: Arc::new(memory), fleet_demands: Arc::default(), nodes }
    }

    /// Lends units beyond a charge.
    fn loan(
        &self,
        charge: &Charge<'_>,
        request: LeaseRequest,
        now: Timestamp,
    ) -> Result<Loan<MemoryReceipt>, StoreFailure> {
        let charge_one = |cost: u64| -> Result<_, StoreFailure> {
            let answers = self.memory.charge_now(&[charge.costing(cost)], now)?;
            answers.first().copied().ok_or(StoreFailure::Unanswered)
        };
        let mut answer = charge_one(0)?;
        // A node takes only its share, so that the next node finds units too.
        let extra = request.grant(answer.outcome.remaining);
        if extra > 0 {
            answer = charge_one(extra)?;
        }
        let window = window_of(charge.quota(), &answer, now);
        let family = Family::single(&Secret::repeatable(0), &[b"receipt"], charge.quota().clone());
        let owner = Arc::new((family, charge.quota().clone()));
        let receipt = MemoryReceipt { key: charge.key, number: charge.number, owner };
        Ok(Loan { answer, extra, window: Some(window), receipt: Some(receipt), fleet_demand: None })
    }

    /// Adds a node's report to the demand of all nodes. Returns the sum per second, if it is known.
    fn report_demand(
        &self,
        charge: &Charge<'_>,
        outcome: &Outcome,
        request: LeaseRequest,
        now: Timestamp,
    ) -> Option<u64> {
        if request.demand == 0 {
            return None;
        }
        let scarcity = Scarcity::of(outcome.remaining, outcome.limit);
        let mut fleet_demands = self.fleet_demands.lock().unwrap_or_else(PoisonError::into_inner);
        let known = fleet_demands.get(&charge.key).copied();
        let demand = FleetDemand::with(known, request.demand, scarcity, now)?;
        fleet_demands.insert(charge.key, demand);
        demand.per_second(now)
    }
}

impl Lender for MemoryLender {
    type Receipt = MemoryReceipt;

    async fn lend(
        &self,
        charges: &[Charge<'_>],
        requests: &[LeaseRequest],
        now: Timestamp,
    ) -> Result<Loans<MemoryReceipt>, StoreFailure> {
        let answers = self.memory.charge_now(charges, now)?;
        let is_admitted = charges
            .iter()
            .zip(&answers)
            .all(|(charge, answer)| charge.enforcement == Enforcement::Shadow || answer.outcome.is_allowed());
        let each = charges.iter().zip(answers).zip(requests);
        each.map(|((charge, answer), &request)| {
            if request.is_empty() {
                return Ok(Loan { answer, extra: 0, window: None, receipt: None, fleet_demand: None });
            }
            if !is_admitted || !answer.outcome.is_allowed() || charge.lease.is_none() {
                let window = window_of(charge.quota(), &answer, now);
                let fleet_demand = self.report_demand(charge, &answer.outcome, request, now);
                return Ok(Loan { answer, extra: 0, window: Some(window), receipt: None, fleet_demand });
            }
            let loan = self.loan(charge, request, now)?;
            let fleet_demand = self.report_demand(charge, &loan.answer.outcome, request, now);
            // The state is the one after the loan; the verdict is that of the charge.
            let mut answer = answer;
            let verdict = answer.outcome.verdict;
            answer.outcome = loan.answer.outcome;
            answer.outcome.verdict = verdict;
            Ok(Loan { answer, fleet_demand, ..loan })
        })
        .collect()
    }

    fn quota_of<'r>(&self, receipt: &'r MemoryReceipt) -> &'r Quota {
        &receipt.owner.1
    }

    async fn lend_more(
        &self,
        receipt: &MemoryReceipt,
        request: LeaseRequest,
        now: Timestamp,
    ) -> Result<Loan<MemoryReceipt>, StoreFailure> {
        let charge = receipt.charge(0);
        let mut loan = self.loan(&charge, request, now)?;
        loan.fleet_demand = self.report_demand(&charge, &loan.answer.outcome, request, now);
        loan.answer.outcome.verdict = Verdict::Allow;
        Ok(loan)
    }

    async fn return_units(
        &self,
        receipt: &MemoryReceipt,
        units: u64,
        acquired_at: Timestamp,
        now: Timestamp,
    ) -> Result<(), StoreFailure> {
        // Units of a fixed window are counted at its last instant. They have expired with it.
        if matches!(receipt.owner.1, Quota::FixedWindow(_)) && acquired_at < now {
            return Err(StoreFailure::Superseded);
        }
        self.memory.refund(&[receipt.charge(units).of_instant(acquired_at)], now).await
    }
}

impl Store for MemoryLender {
    async fn charge(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<Answers, StoreFailure> {
        self.memory.charge_now(charges, now)
    }

    async fn refund(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<(), StoreFailure> {
        self.memory.refund(charges, now).await
    }

    async fn renew(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<(), StoreFailure> {
        self.memory.renew(charges, now).await
    }

    async fn step_back(
        &self,
        charge: &Charge<'_>,
        empty_at: Timestamp,
        now: Timestamp,
    ) -> Result<bool, StoreFailure> {
        self.memory.step_back(charge, empty_at, now).await
    }

    async fn reset(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<(), StoreFailure> {
        self.memory.reset(charges, now).await
    }

    fn hold(&self, hold: &Hold) {
        self.memory.hold(hold);
    }

    fn nodes(&self) -> u32 {
        self.nodes
    }
}
