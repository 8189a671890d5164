//! Requests whose counters lie in several slots of a cluster: one call to each, all at once. If one denies or fails, what the others
//! took is given back; whatever goes wrong on the way, too much is taken, never too little.

use smallvec::SmallVec;
use tokio::time::Instant;
use tollgate::charge::{Answer, Answers, Charge};
use tollgate::store::StoreFailure;
use tollgate::together::together;
use tollgate::{Stance, Timestamp};

use super::RedisStore;
use crate::key::Key;
use crate::script::{Heard, Operation, Question};

/// The charges of one slot, and their places in the request.
struct Part<'c> {
    slot: u16,
    places: SmallVec<[usize; 6]>,
    charges: SmallVec<[Charge<'c>; 6]>,
}

impl RedisStore {
    pub(super) async fn charge_apart(
        &self,
        charges: &[Charge<'_>],
        now: Timestamp,
        deadline: Instant,
    ) -> Result<Answers, StoreFailure> {
        let parts = parts(charges);
        let each = parts.iter().map(|part| self.ask(Operation::Charge, &part.charges, now, deadline));
        let results = together(each).await;
        let failures = || results.iter().filter_map(|result| result.as_ref().err().copied());
        // That one may have been charged matters more than that another was not.
        let failure =
            failures().find(|&failure| failure == StoreFailure::Unanswered).or_else(|| failures().next());
        let mut answered: Vec<(&Part<'_>, Answers)> =
            parts.iter().zip(results).filter_map(|(part, result)| Some((part, result.ok()?))).collect();
        let is_denied = answered.iter().any(|(part, answers)| !part.is_admitted(answers));
        if failure.is_none() && !is_denied {
            return Ok(in_order(charges.len(), &answered));
        }
        if let Some(failure) = failure {
            answered.iter().for_each(|(part, answers)| self.give_back(&part.taken(answers), now));
            return Err(failure);
        }
        let each = answered.iter().map(|(part, answers)| self.undo(part, answers, now, deadline));
        let seen = together(each).await;
        for ((part, answers), seen) in answered.iter_mut().zip(seen) {
            match seen {
                Some(seen) => *answers = seen,
                // Without a look, what was given back is added up again.
                None if part.is_admitted(answers) => part.add_back(answers),
                None => {}
            }
        }
        Ok(in_order(charges.len(), &answered))
    }

    /// Gives back what a denied request took of the limits that would have let it pass, and looks how they are without it.
    async fn undo(
        &self,
        part: &Part<'_>,
        answers: &Answers,
        now: Timestamp,
        deadline: Instant,
    ) -> Option<Answers> {
        let taken = part.taken(answers);
        if taken.is_empty() {
            return None;
        }
        let refund = Question::new(Operation::Refund, &taken, now).asked().ok()?;
        let looks: SmallVec<[Charge<'_>; 6]> = part.charges.iter().map(|charge| charge.costing(0)).collect();
        let mut look = Question::new(Operation::Charge, &looks, now);
        let time = self.time(now);
        let looked = match self.link.begin_both([refund.clone(), look.asked().ok()?], time, deadline) {
            Ok([first, then]) => {
                self.corrections.follow(refund, Ok(first), time);
                then.answer().await.ok()?
            }
            Err(failure) => {
                self.corrections.follow(refund, Err(failure), time);
                return None;
            }
        };
        match look.hear(&looked) {
            Heard::Answers(answers) => Some(answers),
            _ => None,
        }
    }

    /// Gives units back, in the background. What cannot be sent any more in time stays taken.
    fn give_back(&self, taken: &[Charge<'_>], now: Timestamp) {
        if taken.is_empty() {
            return;
        }
        if let Ok(asked) = Question::new(Operation::Refund, taken, now).asked() {
            self.corrections.send(asked, self.time(now));
        }
    }

    pub(super) async fn correct_apart(
        &self,
        operation: Operation,
        charges: &[Charge<'_>],
        now: Timestamp,
        deadline: Instant,
    ) -> Result<(), StoreFailure> {
        let parts = parts(charges);
        let each = parts.iter().map(|part| self.ask(operation, &part.charges, now, deadline));
        together(each).await.into_iter().try_for_each(|result| result.map(drop))
    }
}

impl<'c> Part<'c> {
    /// Whether its enforced charges were all admitted.
    fn is_admitted(&self, answers: &Answers) -> bool {
        let mut each = self.charges.iter().zip(answers);
        each.all(|(charge, answer)| charge.stance() == Stance::Shadow || answer.outcome.is_allowed())
    }

    /// The charges that took something, to be given back at the instant at which they did.
    fn taken(&self, answers: &Answers) -> SmallVec<[Charge<'c>; 6]> {
        if !self.is_admitted(answers) {
            return SmallVec::new();
        }
        let each = self.charges.iter().zip(answers);
        each.filter(|(charge, answer)| charge.cost() > 0 && answer.outcome.is_allowed())
            .map(|(charge, answer)| charge.refunding(answer))
            .collect()
    }

    fn add_back(&self, answers: &mut Answers) {
        for (charge, answer) in self.charges.iter().zip(answers) {
            if answer.outcome.is_allowed() {
                let remaining = answer.outcome.remaining.saturating_add(charge.cost());
                answer.outcome.remaining = remaining.min(answer.outcome.limit);
            }
        }
    }
}

fn parts<'c>(charges: &[Charge<'c>]) -> Vec<Part<'c>> {
    let mut parts: Vec<Part<'c>> = Vec::new();
    for (place, charge) in charges.iter().enumerate() {
        let slot = Key::of(charge).slot();
        let known = parts.iter().position(|part| part.slot == slot);
        let at = known.unwrap_or_else(|| {
            parts.push(Part { slot, places: SmallVec::new(), charges: SmallVec::new() });
            parts.len() - 1
        });
        parts[at].places.push(place);
        parts[at].charges.push(*charge);
    }
    parts
}

fn in_order(count: usize, answered: &[(&Part<'_>, Answers)]) -> Answers {
    let mut placed: SmallVec<[Option<Answer>; 6]> = SmallVec::from_elem(None, count);
    for (part, answers) in answered {
        for (&place, answer) in part.places.iter().zip(answers) {
            placed[place] = Some(*answer);
        }
    }
    placed.into_iter().flatten().collect()
}
