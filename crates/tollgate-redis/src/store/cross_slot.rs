//! Requests whose counters are in several slots of a cluster: one concurrent call per slot. If one denies or fails, the
//! others are refunded. Whatever fails, a request may be charged too much, never too little.

use smallvec::SmallVec;
use tokio::time::Instant;
use tollgate::store::{Answers, Charge, ChargeAnswer, StoreFailure};
use tollgate::together::together;
use tollgate::{Enforcement, Timestamp};

use super::RedisStore;
use crate::key::Key;
use crate::script::{Operation, ScriptRequest, ScriptResponse};

/// The charges of one slot, and their positions in the request.
struct SlotGroup<'c> {
    slot: u16,
    positions: SmallVec<[usize; 6]>,
    charges: SmallVec<[Charge<'c>; 6]>,
}

impl RedisStore {
    pub(super) async fn charge_across_slots(
        &self,
        charges: &[Charge<'_>],
        now: Timestamp,
        deadline: Instant,
    ) -> Result<Answers, StoreFailure> {
        let groups = groups(charges);
        let each = groups.iter().map(|group| self.run(Operation::Charge, &group.charges, now, deadline));
        let results = together(each).await;
        let failures = || results.iter().filter_map(|result| result.as_ref().err().copied());
        // Unanswered takes precedence: a charge may have been executed.
        let failure =
            failures().find(|&failure| failure == StoreFailure::Unanswered).or_else(|| failures().next());
        let mut answered: Vec<(&SlotGroup<'_>, Answers)> =
            groups.iter().zip(results).filter_map(|(group, result)| Some((group, result.ok()?))).collect();
        let is_denied = answered.iter().any(|(group, answers)| !group.is_admitted(answers));
        if failure.is_none() && !is_denied {
            return Ok(in_order(charges.len(), &answered));
        }
        if let Some(failure) = failure {
            answered
                .iter()
                .for_each(|(group, answers)| self.refund_in_background(&group.charged(answers), now));
            return Err(failure);
        }
        let each =
            answered.iter().map(|(group, answers)| self.refund_and_peek(group, answers, now, deadline));
        let peeked = together(each).await;
        for ((group, answers), peeked) in answered.iter_mut().zip(peeked) {
            match peeked {
                Some(peeked) => *answers = peeked,
                // The peek failed, so the refunded costs are added back.
                None if group.is_admitted(answers) => group.add_costs_back(answers),
                None => {}
            }
        }
        Ok(in_order(charges.len(), &answered))
    }

    /// Refunds what a denied request charged in other slots, and peeks at the counters afterwards.
    async fn refund_and_peek(
        &self,
        group: &SlotGroup<'_>,
        answers: &Answers,
        now: Timestamp,
        deadline: Instant,
    ) -> Option<Answers> {
        let charged = group.charged(answers);
        if charged.is_empty() {
            return None;
        }
        let refund = ScriptRequest::new(Operation::Refund, &charged, now).encode().ok()?;
        let peeks: SmallVec<[Charge<'_>; 6]> = group.charges.iter().map(|charge| charge.costing(0)).collect();
        let mut peek = ScriptRequest::new(Operation::Charge, &peeks, now);
        let time = self.time(now);
        let reply = match self.client.submit_pair([refund.clone(), peek.encode().ok()?], time, deadline) {
            Ok([first, then]) => {
                self.corrections.follow(refund, Ok(first), time);
                then.answer().await.ok()?
            }
            Err(failure) => {
                self.corrections.follow(refund, Err(failure), time);
                return None;
            }
        };
        match peek.interpret(&reply) {
            ScriptResponse::Answers(answers) => Some(answers),
            _ => None,
        }
    }

    /// Refunds in the background. Units that cannot be refunded in time stay charged.
    fn refund_in_background(&self, charged: &[Charge<'_>], now: Timestamp) {
        if charged.is_empty() {
            return;
        }
        if let Ok(request) = ScriptRequest::new(Operation::Refund, charged, now).encode() {
            self.corrections.send(request, self.time(now));
        }
    }

    pub(super) async fn correct_across_slots(
        &self,
        operation: Operation,
        charges: &[Charge<'_>],
        now: Timestamp,
        deadline: Instant,
    ) -> Result<(), StoreFailure> {
        let groups = groups(charges);
        let each = groups.iter().map(|group| self.run(operation, &group.charges, now, deadline));
        together(each).await.into_iter().try_for_each(|result| result.map(drop))
    }
}

impl<'c> SlotGroup<'c> {
    /// Whether all enforced charges were admitted.
    fn is_admitted(&self, answers: &Answers) -> bool {
        let mut each = self.charges.iter().zip(answers);
        each.all(|(charge, answer)| {
            charge.enforcement() == Enforcement::Shadow || answer.outcome.is_allowed()
        })
    }

    /// The charges that were executed, as refunds at the instant of the charge.
    fn charged(&self, answers: &Answers) -> SmallVec<[Charge<'c>; 6]> {
        if !self.is_admitted(answers) {
            return SmallVec::new();
        }
        let each = self.charges.iter().zip(answers);
        each.filter(|(charge, answer)| charge.cost() > 0 && answer.outcome.is_allowed())
            .map(|(charge, answer)| charge.refunding(answer))
            .collect()
    }

    fn add_costs_back(&self, answers: &mut Answers) {
        for (charge, answer) in self.charges.iter().zip(answers) {
            if answer.outcome.is_allowed() {
                let remaining = answer.outcome.remaining.saturating_add(charge.cost());
                answer.outcome.remaining = remaining.min(answer.outcome.limit);
            }
        }
    }
}

fn groups<'c>(charges: &[Charge<'c>]) -> Vec<SlotGroup<'c>> {
    let mut groups: Vec<SlotGroup<'c>> = Vec::new();
    for (position, charge) in charges.iter().enumerate() {
        let slot = Key::of(charge).slot();
        let existing = groups.iter().position(|group| group.slot == slot);
        let at = existing.unwrap_or_else(|| {
            groups.push(SlotGroup { slot, positions: SmallVec::new(), charges: SmallVec::new() });
            groups.len() - 1
        });
        groups[at].positions.push(position);
        groups[at].charges.push(*charge);
    }
    groups
}

fn in_order(count: usize, answered: &[(&SlotGroup<'_>, Answers)]) -> Answers {
    let mut ordered: SmallVec<[Option<ChargeAnswer>; 6]> = SmallVec::from_elem(None, count);
    for (group, answers) in answered {
        for (&position, answer) in group.positions.iter().zip(answers) {
            ordered[position] = Some(*answer);
        }
    }
    ordered.into_iter().flatten().collect()
}
