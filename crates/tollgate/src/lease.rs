//! Leases: units that a node draws from a shared counter ahead of time and spends by itself. They are debited when they are drawn, so
//! that all nodes together never admit more than the counter did; what is not spent in time goes back.
//!
//! [`Leased`] stands before a store that can lend ([`Lender`]) and is a store itself. Quiet keys are asked about as before; a key that is
//! asked about often is answered from what is held of it, and one that was denied from what is known of that, until it may pass again.
//! Nothing here waits or keeps time by itself: whoever owns a [`Leased`] calls [`Leased::tend`] now and then.

mod book;
mod cell;
mod crowd;
mod denials;
mod desk;
mod draws;
mod front;
mod heat;
mod lending;
mod share;
mod size;
mod tend;
#[cfg(test)]
mod tests;
mod turn;

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::charge::{Answer, Answers, Charge};
use crate::decision::{Source, Stance};
use crate::outcome::Outcome;
use crate::quota::Quota;
use crate::store::{Store, StoreFailure};
use crate::time::Timestamp;

use book::Book;
pub use book::{Holding, LeaseReport};
use cell::{Asked, Cell, Spent};
pub use crowd::{PARTS, Want};
pub use lending::Lending;
use turn::Turn;

/// On how many nodes one counts while that is not known.
const NODES_UNKNOWN: u32 = 3;
/// How often a request waits for somebody else's draw before it asks for itself.
const WAITS_MAX: usize = 2;

/// What a store lent.
#[derive(Clone, Debug)]
pub struct Loan<R> {
    /// The answer to the charge itself.
    pub answer: Answer,
    /// The units that were taken beyond it.
    pub extra: u64,
    /// Which window they were taken of, by a number; 0 where there are no windows. Units end with theirs. None where that was not told,
    /// since nothing was wanted.
    pub window: Option<u64>,
    /// What it takes to give them back, and to draw again; none where units cannot go back.
    pub receipt: Option<R>,
    /// What all nodes together are asked for of this counter in a second, as far as they report it and it is known yet.
    pub crowd: Option<u64>,
}

/// The window that a counter counts in, by its end; 0 where there are none. Of an answer that counted something.
#[must_use]
pub fn window_of(quota: &Quota, answer: &Answer, now: Timestamp) -> u64 {
    match quota {
        Quota::FixedWindow(_) => (now + answer.outcome.reset_after).unix_micros(),
        _ => 0,
    }
}

/// One loan for each charge, in order.
pub type Loans<R> = SmallVec<[Loan<R>; 6]>;

/// A store that lends units.
pub trait Lender: Store {
    /// What it takes to give units back. It names the counter, its quota, and, of a window, which one.
    type Receipt: Clone + Send + Sync + 'static;

    /// Charges as [`Store::charge`] does, and if all pass takes of each counter what is wanted beyond that, of what is there then. What
    /// is reported counts in any case.
    fn lend(
        &self,
        charges: &[Charge<'_>],
        wants: &[Want],
        now: Timestamp,
    ) -> impl Future<Output = Result<Loans<Self::Receipt>, StoreFailure>> + Send;

    /// The quota of a receipt.
    fn quota_of<'r>(&self, receipt: &'r Self::Receipt) -> &'r Quota;

    /// Takes more of a counter that has lent some.
    fn lend_more(
        &self,
        receipt: &Self::Receipt,
        want: Want,
        now: Timestamp,
    ) -> impl Future<Output = Result<Loan<Self::Receipt>, StoreFailure>> + Send;

    /// Takes units back that were drawn at an instant by the counter's clock; what would make room that they did not take is
    /// dropped. It is asked once for each unit: what may have been done is not tried again.
    fn take_back(
        &self,
        receipt: &Self::Receipt,
        units: u64,
        drawn_at: Timestamp,
        now: Timestamp,
    ) -> impl Future<Output = Result<(), StoreFailure>> + Send;
}

/// A store with leases before it.
pub struct Leased<S: Lender> {
    store: S,
    book: Book<S::Receipt>,
    nodes_min: u32,
}

type CellOf<S> = Arc<Cell<<S as Lender>::Receipt>>;
type CellsOf<'d, S> = SmallVec<[&'d CellOf<S>; 6]>;

/// What is known of one charge without asking.
enum Known<R> {
    /// It was paid of what is held, of this lease.
    Paid(Arc<Cell<R>>, Spent),
    /// It was denied before, and still is.
    Denied(Outcome),
    /// Only the store knows.
    Lacking,
}

impl<S: Lender> Leased<S> {
    /// Leases before a store, for at most so many keys at a time; further ones are asked about exactly.
    pub fn new(store: S, keys_max: usize) -> Self {
        Self { store, book: Book::new(keys_max), nodes_min: 0 }
    }

    /// Counts on so many nodes at least, however few the store sees.
    #[must_use]
    pub fn among(mut self, nodes: u32) -> Self {
        self.nodes_min = nodes;
        self
    }

    /// The store behind.
    pub const fn store(&self) -> &S {
        &self.store
    }

    /// What is held, and what was done with it.
    pub fn report(&self) -> LeaseReport {
        self.book.report()
    }

    /// What is held of each limit's counters, by the [number](crate::charge::Family::id) of their family. It walks all keys: for whoever looks now and
    /// then.
    pub fn holdings(&self) -> HashMap<u64, Holding> {
        self.book.holdings()
    }

    /// How many nodes share the store, as far as that is known.
    fn fleet_size(&self) -> u32 {
        let known = match self.store.nodes() {
            0 => NODES_UNKNOWN,
            nodes => nodes,
        };
        known.max(self.nodes_min)
    }

    /// What a draw brought to a key that is no longer leased goes back.
    fn after(&self, cell: &Cell<S::Receipt>) {
        if cell.is_forgotten() {
            self.book.strand(cell);
        } else if cell.is_gone() {
            self.book.leave(cell);
        }
    }

    /// Pays every charge that can be paid of what is held.
    fn pay(&self, charges: &[Charge<'_>], now: Timestamp) -> SmallVec<[Known<S::Receipt>; 6]> {
        let each = charges.iter().map(|charge| {
            let Some(cell) = self.book.cell(charge) else { return Known::Lacking };
            let spent = cell.spending();
            if let Some(left) = cell.spend(charge.cost(), now) {
                if cell.runs_out(left) {
                    self.book.want(&cell);
                }
                return Known::Paid(cell, spent);
            }
            cell.denial(charge, now).map_or(Known::Lacking, Known::Denied)
        });
        each.collect()
    }

    /// Gives back what was paid.
    fn unpay(charges: &[Charge<'_>], known: &[Known<S::Receipt>]) {
        for (charge, known) in charges.iter().zip(known) {
            if let Known::Paid(cell, spent) = known {
                cell.put(charge.cost(), *spent);
            }
        }
    }

    /// The answers, if the store need not be asked. Otherwise whatever was paid stays paid.
    fn settled(
        &self,
        charges: &[Charge<'_>],
        known: &[Known<S::Receipt>],
        now: Timestamp,
    ) -> Option<Answers> {
        if known.iter().any(|known| matches!(known, Known::Lacking)) {
            return None;
        }
        let is_denied = charges
            .iter()
            .zip(known)
            .any(|(charge, known)| is_enforced(charge) && matches!(known, Known::Denied(_)));
        if is_denied {
            Self::unpay(charges, known);
            self.book.counts.refused();
        } else {
            self.book.counts.paid();
        }
        let each = charges.iter().zip(known);
        Some(each.filter_map(|(charge, known)| told(charge, known, !is_denied, now)).collect())
    }

    /// Writes the answers, if the store need not be asked, and if all that is held is at hand. Otherwise nothing is paid, and what was
    /// written means nothing.
    #[inline]
    fn answered(&self, charges: &[Charge<'_>], now: Timestamp, answers: &mut Answers) -> Option<()> {
        let mut desk = self.book.at_hand(charges)?;
        let mut cells = CellsOf::<'_, S>::new();
        let mut is_denied = false;
        for charge in charges {
            let cell = desk.cell(charge)?;
            if !cell.can_spend(charge.cost(), now) {
                if !cell.denies(charge, now) {
                    return None;
                }
                is_denied |= is_enforced(charge);
            }
            cells.push(cell);
        }
        if is_denied {
            refused(charges, &cells, now, answers)?;
        } else {
            self.paid(charges, &cells, now, answers)?;
        }
        drop(cells);
        *(if is_denied { &mut desk.refused } else { &mut desk.paid }) += 1;
        Some(())
    }

    /// Pays all of them, each of its cell, but for shadows that are denied. None if somebody else was faster: then nothing is paid.
    #[inline]
    fn paid(
        &self,
        charges: &[Charge<'_>],
        cells: &[&Arc<Cell<S::Receipt>>],
        now: Timestamp,
        answers: &mut Answers,
    ) -> Option<()> {
        let mut leases = SmallVec::<[Spent; 6]>::new();
        for (charge, cell) in charges.iter().zip(cells) {
            let spent = cell.spending();
            if let Some(left) = cell.spend(charge.cost(), now) {
                if cell.runs_out(left) {
                    self.book.want(cell);
                }
                leases.push(spent);
                let outcome = cell.outcome(charge.quota(), now);
                answers.push(answer(outcome, Source::Lease).charged(spent.drawn_at));
            } else if let Some(outcome) = cell.denial(charge, now).filter(|_| !is_enforced(charge)) {
                leases.push(Spent::default());
                answers.push(answer(outcome, Source::DenyCache));
            } else {
                let paid = charges.iter().zip(cells).zip(leases);
                paid.for_each(|((charge, cell), spent)| cell.put(charge.cost(), spent));
                return None;
            }
        }
        for (answer, cell) in answers.iter_mut().zip(cells) {
            if answer.source == Source::Lease {
                answer.unheard = cell.news();
            }
        }
        Some(())
    }

    /// Asks the store about what is lacking, and draws ahead of what is asked often.
    async fn ask(
        &self,
        charges: &[Charge<'_>],
        known: &[Known<S::Receipt>],
        turns: &mut [Option<Turn<S::Receipt>>],
        now: Timestamp,
    ) -> Result<Answers, StoreFailure> {
        let places: SmallVec<[usize; 6]> =
            (0..charges.len()).filter(|&place| !matches!(known[place], Known::Paid(..))).collect();
        let asked: SmallVec<[Charge<'_>; 6]> = places.iter().map(|&place| charges[place]).collect();
        let wants: SmallVec<[Want; 6]> = places
            .iter()
            .map(|&place| match &turns[place] {
                Some(turn) if !self.book.is_closed() => {
                    let (quota, cost) = (charges[place].quota(), charges[place].cost());
                    self.book.take_ended(turn.cell(), now);
                    turn.cell().wanted(quota, cost, self.fleet_size(), now)
                }
                _ => Want::default(),
            })
            .collect();
        for (&place, want) in places.iter().zip(&wants) {
            if let Some(turn) = &mut turns[place] {
                turn.ask(want.units);
            }
        }
        // Whoever is gone before the answer comes, is refused or not answered has not passed: what it paid goes back.
        let mut paid = Paid::<S> { charges, known, is_spent: false };
        let loans = match self.store.lend(&asked, &wants, now).await {
            Ok(loans) if loans.len() == asked.len() => loans,
            result => {
                let failure = result.err().unwrap_or(StoreFailure::Unanswered);
                if failure != StoreFailure::Unanswered {
                    turns.iter_mut().flatten().for_each(Turn::is_refused);
                }
                return Err(failure);
            }
        };
        self.book.counts.asked();
        let is_admitted = asked
            .iter()
            .zip(&loans)
            .all(|(charge, loan)| !is_enforced(charge) || loan.answer.outcome.is_allowed());
        paid.is_spent = is_admitted;
        drop(paid);
        let mut answers: SmallVec<[Option<Answer>; 6]> =
            charges.iter().zip(known).map(|(charge, known)| told(charge, known, is_admitted, now)).collect();
        for ((&place, loan), &want) in places.iter().zip(loans).zip(&wants) {
            answers[place] = Some(loan.answer);
            if let Some(turn) = turns[place].take() {
                self.book.counts.drew(loan.extra);
                let (quota, cost) = (charges[place].quota(), charges[place].cost());
                let cell = Arc::clone(turn.cell());
                let ended = turn.end(Asked { quota, cost, want, sent: now, is_admitted }, loan);
                self.book.counts.stranded(ended);
                self.after(&cell);
            }
        }
        Ok(answers.into_iter().flatten().collect())
    }

    /// Charges that are leased, or may be, of which nobody draws at the moment: those who come after wait for this one.
    async fn charge_with_turns(
        &self,
        charges: &[Charge<'_>],
        now: Timestamp,
    ) -> Result<Answers, StoreFailure> {
        let mut since: SmallVec<[Option<u64>; 6]> = charges.iter().map(|_| None).collect();
        let mut waits = 0;
        loop {
            let known = self.pay(charges, now);
            if let Some(answers) = self.settled(charges, &known, now) {
                return Ok(answers);
            }
            let mut turns: SmallVec<[Option<Turn<S::Receipt>>; 6]> = charges.iter().map(|_| None).collect();
            let mut busy: Option<(CellOf<S>, usize)> = None;
            for (place, charge) in charges.iter().enumerate() {
                if matches!(known[place], Known::Paid(..)) {
                    continue;
                }
                let Some(cell) = self.book.cell_or_new(charge, now) else { continue };
                match cell.turn(&mut since[place], charge.cost()) {
                    Some(turn) => turns[place] = Some(turn),
                    None => busy = busy.or(Some((cell, place))),
                }
            }
            let Some((cell, place)) = busy.filter(|_| waits < WAITS_MAX) else {
                return self.ask(charges, &known, &mut turns, now).await;
            };
            Self::unpay(charges, &known);
            drop(turns);
            waits += 1;
            cell.others_turn(charges[place].cost()).await;
            if since[place].is_some_and(|since| cell.has_failed_since(since.saturating_sub(1))) {
                waits = WAITS_MAX;
            }
            if let Some(answers) = self.denied_together(charges, &since, now) {
                return Ok(answers);
            }
        }
    }

    /// Those who waited together for one draw that was not enough for all are denied together.
    fn denied_together(
        &self,
        charges: &[Charge<'_>],
        since: &[Option<u64>],
        now: Timestamp,
    ) -> Option<Answers> {
        let ([charge], [Some(since)]) = (charges, since) else { return None };
        let cell = self.book.cell(charge).filter(|_| is_enforced(charge))?;
        if cell.can_spend(charge.cost(), now) {
            return None;
        }
        let outcome = cell.denied_since(*since, charge, now)?;
        self.book.counts.refused();
        Some([answer(outcome, Source::DenyCache)].into_iter().collect())
    }
}

/// What a request paid of leases while it asks the store for the rest.
struct Paid<'a, 'c, S: Lender> {
    charges: &'a [Charge<'c>],
    known: &'a [Known<S::Receipt>],
    is_spent: bool,
}

impl<S: Lender> Drop for Paid<'_, '_, S> {
    fn drop(&mut self) {
        if !self.is_spent {
            Leased::<S>::unpay(self.charges, self.known);
        }
    }
}

fn is_enforced(charge: &Charge<'_>) -> bool {
    charge.stance() == Stance::Enforced
}

fn answer(outcome: Outcome, source: Source) -> Answer {
    Answer::new(outcome, source)
}

/// What is told whom one of the cells denies. Whoever could pay does not, so that nobody has to give back.
fn refused<R: Clone>(
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

/// The answer of what is known. One that stays paid tells what was spent.
fn told<R: Clone>(charge: &Charge<'_>, known: &Known<R>, is_paid: bool, now: Timestamp) -> Option<Answer> {
    match known {
        Known::Paid(cell, spent) => {
            let unheard = if is_paid { cell.news() } else { 0 };
            let answer = answer(cell.outcome(charge.quota(), now), Source::Lease).charged(spent.drawn_at);
            Some(Answer { unheard, ..answer })
        }
        Known::Denied(outcome) => Some(answer(*outcome, Source::DenyCache)),
        Known::Lacking => None,
    }
}
