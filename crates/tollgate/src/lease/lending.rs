//! A store in memory that lends: one counter for many nodes of a simulation.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::crowd::Crowd;
use super::{Lender, Loan, Loans, Want, window_of};
use crate::algorithm::concurrency::PermitId;
use crate::charge::{Answers, Charge, Family};
use crate::decision::Stance;
use crate::key::{Fingerprint, Secret};
use crate::memory::MemoryStore;
use crate::outcome::{Outcome, Verdict};
use crate::quota::Quota;
use crate::store::{Hold, Store, StoreFailure};
use crate::time::Timestamp;

/// Counters in memory that several nodes draw from. Copies share them. In a fleet they are in Redis; this is for trying things out.
#[derive(Clone)]
pub struct Lending {
    memory: Arc<MemoryStore>,
    /// What the nodes are asked for, of keys that are scarce. They are never forgotten, since no trial has many.
    crowds: Arc<Mutex<HashMap<Fingerprint, Crowd>>>,
    nodes: u32,
}

/// Whose units they are.
#[derive(Clone)]
pub struct MemoryReceipt {
    key: Fingerprint,
    number: u32,
    owner: Arc<(Family, Quota)>,
}

impl MemoryReceipt {
    fn charge(&self, cost: u64) -> Charge<'_> {
        Charge {
            key: self.key,
            family: &self.owner.0,
            number: self.number,
            quota: &self.owner.1,
            cost,
            stance: Stance::Enforced,
            permit: PermitId(0),
            group: None,
            lease: None,
            charged_at: None,
        }
    }
}

impl Lending {
    /// Counters that so many nodes share.
    #[must_use]
    pub fn new(memory: MemoryStore, nodes: u32) -> Self {
        Self { memory: Arc::new(memory), crowds: Arc::default(), nodes }
    }

    /// What one counter lends beyond what it was charged.
    fn loan(
        &self,
        charge: &Charge<'_>,
        want: Want,
        now: Timestamp,
    ) -> Result<Loan<MemoryReceipt>, StoreFailure> {
        let charge_one = |cost: u64| -> Result<_, StoreFailure> {
            let answers = self.memory.charge_now(&[charge.costing(cost)], now)?;
            answers.first().copied().ok_or(StoreFailure::Unanswered)
        };
        let mut answer = charge_one(0)?;
        // Each takes its part of what is there, so that the next one finds something, too.
        let extra = want.of(answer.outcome.remaining);
        if extra > 0 {
            answer = charge_one(extra)?;
        }
        let window = window_of(charge.quota(), &answer, now);
        let family = Family::single(&Secret::repeatable(0), &[b"receipt"], charge.quota().clone());
        let owner = Arc::new((family, charge.quota().clone()));
        let receipt = MemoryReceipt { key: charge.key, number: charge.number, owner };
        Ok(Loan { answer, extra, window: Some(window), receipt: Some(receipt), crowd: None })
    }

    /// Counts what a node reports of a counter that stands so; tells what all are asked for.
    fn crowd(&self, charge: &Charge<'_>, outcome: &Outcome, want: Want, now: Timestamp) -> Option<u64> {
        if want.report == 0 {
            return None;
        }
        let is_tight = outcome.remaining.saturating_mul(2) < outcome.limit;
        let mut crowds = self.crowds.lock().unwrap_or_else(PoisonError::into_inner);
        let known = crowds.get(&charge.key).copied();
        let crowd = Crowd::with(known, want.report, is_tight, now)?;
        crowds.insert(charge.key, crowd);
        crowd.demand(now)
    }
}

impl Lender for Lending {
    type Receipt = MemoryReceipt;

    async fn lend(
        &self,
        charges: &[Charge<'_>],
        wants: &[Want],
        now: Timestamp,
    ) -> Result<Loans<MemoryReceipt>, StoreFailure> {
        let answers = self.memory.charge_now(charges, now)?;
        let is_admitted = charges
            .iter()
            .zip(&answers)
            .all(|(charge, answer)| charge.stance == Stance::Shadow || answer.outcome.is_allowed());
        let each = charges.iter().zip(answers).zip(wants);
        each.map(|((charge, answer), &want)| {
            if want.is_none() {
                return Ok(Loan { answer, extra: 0, window: None, receipt: None, crowd: None });
            }
            if !is_admitted || !answer.outcome.is_allowed() || charge.lease.is_none() {
                let window = window_of(charge.quota(), &answer, now);
                let crowd = self.crowd(charge, &answer.outcome, want, now);
                return Ok(Loan { answer, extra: 0, window: Some(window), receipt: None, crowd });
            }
            let loan = self.loan(charge, want, now)?;
            let crowd = self.crowd(charge, &loan.answer.outcome, want, now);
            // How it stands is told as it is after all; the verdict is that of the charge.
            let mut answer = answer;
            let verdict = answer.outcome.verdict;
            answer.outcome = loan.answer.outcome;
            answer.outcome.verdict = verdict;
            Ok(Loan { answer, crowd, ..loan })
        })
        .collect()
    }

    fn quota_of<'r>(&self, receipt: &'r MemoryReceipt) -> &'r Quota {
        &receipt.owner.1
    }

    async fn lend_more(
        &self,
        receipt: &MemoryReceipt,
        want: Want,
        now: Timestamp,
    ) -> Result<Loan<MemoryReceipt>, StoreFailure> {
        let charge = receipt.charge(0);
        let mut loan = self.loan(&charge, want, now)?;
        loan.crowd = self.crowd(&charge, &loan.answer.outcome, want, now);
        loan.answer.outcome.verdict = Verdict::Allow;
        Ok(loan)
    }

    async fn take_back(
        &self,
        receipt: &MemoryReceipt,
        units: u64,
        drawn_at: Timestamp,
        now: Timestamp,
    ) -> Result<(), StoreFailure> {
        // Units of a window are counted by its last instant: they ended with it.
        if matches!(receipt.owner.1, Quota::FixedWindow(_)) && drawn_at < now {
            return Err(StoreFailure::Superseded);
        }
        self.memory.refund(&[receipt.charge(units).of_instant(drawn_at)], now).await
    }
}

impl Store for Lending {
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
