//! Lends units ahead of time, so that a node need not ask the store for each request.

use tokio::time::Instant;
use tollgate::lease::{LeaseRequest, Lender, Loan, Loans, window_of};
use tollgate::store::{Charge, ChargeAnswer, Store, StoreFailure};
use tollgate::together::together;
use tollgate::{Quota, Timestamp};

use super::{RedisStore, share_a_slot, unanswered};
use crate::script::{Receipt, ScriptRequest, ScriptResponse};

impl Lender for RedisStore {
    type Receipt = Receipt;

    async fn lend(
        &self,
        charges: &[Charge<'_>],
        wants: &[LeaseRequest],
        now: Timestamp,
    ) -> Result<Loans<Receipt>, StoreFailure> {
        if !self.is_ready(charges)? {
            return Ok(Loans::new());
        }
        let is_plain = wants.iter().all(LeaseRequest::is_empty);
        if is_plain || (self.client.is_cluster() && !share_a_slot(charges)) {
            return self.charge_then_lend(charges, wants, now).await;
        }
        let deadline = Instant::now() + self.deadline;
        let mut request = ScriptRequest::lending(charges, wants, now);
        match self.send_until_answered(&mut request, charges, now, deadline).await? {
            ScriptResponse::Lent(lent) => {
                let each =
                    charges.iter().zip(wants).zip(&lent.answers).zip(&lent.units).zip(&lent.fleet_demands);
                Ok(each
                    .map(|((((charge, want), answer), &extra), &fleet_demand)| {
                        if want.is_empty() {
                            return without_loan(*answer);
                        }
                        let window = window_of(charge.quota(), answer, lent.now);
                        let receipt = Receipt::of(charge);
                        Loan { answer: *answer, extra, window: Some(window), receipt, fleet_demand }
                    })
                    .collect())
            }
            _ => Err(StoreFailure::Unanswered),
        }
    }

    fn quota_of<'r>(&self, receipt: &'r Receipt) -> &'r Quota {
        receipt.quota()
    }

    async fn lend_more(
        &self,
        receipt: &Receipt,
        want: LeaseRequest,
        now: Timestamp,
    ) -> Result<Loan<Receipt>, StoreFailure> {
        self.lend_by(receipt, &want, now, Instant::now() + self.deadline).await
    }

    async fn return_units(
        &self,
        receipt: &Receipt,
        units: u64,
        acquired_at: Timestamp,
        now: Timestamp,
    ) -> Result<(), StoreFailure> {
        let deadline = Instant::now() + self.deadline.max(super::CORRECTION);
        let pending =
            self.client.submit(receipt.refund_request(units, acquired_at, now), self.time(now), deadline);
        let value = pending.map_err(unanswered)?.answer().await.map_err(unanswered)?;
        if Receipt::is_done(&value) { Ok(()) } else { Err(StoreFailure::Superseded) }
    }
}

impl RedisStore {
    /// Borrows from one counter.
    async fn lend_by(
        &self,
        receipt: &Receipt,
        want: &LeaseRequest,
        now: Timestamp,
        deadline: Instant,
    ) -> Result<Loan<Receipt>, StoreFailure> {
        let request = receipt.lend_request(want, now);
        let pending = self.client.submit(request, self.time(now), deadline);
        let value = pending.map_err(unanswered)?.answer().await.map_err(unanswered)?;
        let lent = receipt.read_lent(&value).ok_or(StoreFailure::Superseded)?;
        let (Some(answer), Some(&extra)) = (lent.answers.first(), lent.units.first()) else {
            return Err(StoreFailure::Unanswered);
        };
        let fleet_demand = lent.fleet_demands.first().copied().flatten();
        let window = window_of(receipt.quota(), answer, lent.now);
        let receipt = Some(receipt.clone());
        Ok(Loan { answer: *answer, extra, window: Some(window), receipt, fleet_demand })
    }

    /// Charges first, then borrows from each counter separately: for counters in several slots, or when no units are
    /// wanted.
    async fn charge_then_lend(
        &self,
        charges: &[Charge<'_>],
        wants: &[LeaseRequest],
        now: Timestamp,
    ) -> Result<Loans<Receipt>, StoreFailure> {
        let deadline = Instant::now() + self.deadline;
        let answers = self.charge(charges, now).await?;
        let is_admitted = charges.iter().zip(&answers).all(|(charge, answer)| {
            charge.enforcement() == tollgate::Enforcement::Shadow || answer.outcome.is_allowed()
        });
        let mut loans: Loans<Receipt> = answers.into_iter().map(without_loan).collect();
        // All concurrently, within the time that is left.
        let each = charges.iter().zip(wants).zip(&loans).map(|((charge, &want), loan)| {
            // A denied request borrows nothing; it only reports demand.
            let units = if is_admitted && loan.answer.outcome.is_allowed() { want.units } else { 0 };
            let want = LeaseRequest { units, ..want };
            let receipt = Receipt::of(charge).filter(|_| !want.is_empty());
            async move { self.lend_by(&receipt?, &want, now, deadline).await.ok() }
        });
        let borrowed = together(each).await;
        for (loan, more) in loans.iter_mut().zip(borrowed) {
            if let Some(more) = more {
                let (verdict, is_allowed) = (loan.answer.outcome.verdict, loan.answer.outcome.is_allowed());
                loan.fleet_demand = more.fleet_demand;
                if is_admitted && is_allowed {
                    *loan = more;
                    loan.answer.outcome.verdict = verdict;
                }
            }
        }
        Ok(loans)
    }
}

/// A charge without a loan.
fn without_loan(answer: ChargeAnswer) -> Loan<Receipt> {
    Loan { answer, extra: 0, window: None, receipt: None, fleet_demand: None }
}
