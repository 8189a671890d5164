//! The fallback: decisions while the store does not answer. Each limit has stages of its own, from open through this
//! node's share to closed. Every decision charges the share, so that it is warm. What the share admits during an outage
//! is reported to the store when that is back.

use std::slice;
use std::sync::atomic::{AtomicU64, Ordering};

use smallvec::SmallVec;

use super::active::ActivePolicy;
use super::check::ChargeSet;
use super::{Charges, Engine};
use crate::decision::Held;
use crate::outcome::{Outcome, Source, Verdict};
use crate::policy::{Match, Stages};
use crate::quota::Quota;
use crate::store::{Answers, Charge, ChargeAnswer, Enforcement, Store, StoreFailure};
use crate::time::{Ticks, Timestamp};

mod tally;
mod counter;
mod deferred;
mod local;
mod permits;
mod reconcile;
mod settle;
mod share;
mod watch;

pub use deferred::DEFERRED_MAX;
use deferred::Deferred;
use local::{AWAY_RETRY, KeySlot, Local, Side};
pub use reconcile::Reconciled;
use watch::{Stage, Watch};

/// The assumed number of nodes where the store does not know it.
const NODES_UNKNOWN: u32 = 3;

/// The fallback for a store that can be unreachable. A store that answers at once has none.
pub(super) struct Fallback {
    pub(super) local: Local,
    watch: Watch,
    deferred: Deferred,
    answers: [AtomicU64; 3],
}

/// Statistics of the fallback.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FallbackReport {
    /// How many nodes share each limit.
    pub nodes: u32,
    /// The total time that limits were open.
    pub open_for: Ticks,
    /// Answers of open limits.
    pub open: u64,
    /// Answers by this node's share.
    pub local: u64,
    /// Answers of closed limits.
    pub closed: u64,
    /// Counters that are still to be reported to the store.
    pub deferred_held: usize,
    /// Counters that were reported to the store.
    pub deferred_settled: u64,
    /// Counters that were not, or perhaps not, reported: there were too many, or an answer was lost.
    pub deferred_dropped: u64,
    /// Bytes of the fallback counters.
    pub bytes: u64,
}

/// The matches and charges of a set, limit by limit.
type Asked<'q, 'l> = SmallVec<[(&'q Match, Charge<'l>); 6]>;

impl Fallback {
    /// Statistics so far.
    pub(super) fn report(&self) -> FallbackReport {
        let Fallback { local, watch, deferred, answers } = self;
        let [open, locally, closed] = answers.each_ref().map(|number| number.load(Ordering::Relaxed));
        FallbackReport {
            nodes: local.nodes(),
            open_for: watch.open_for(),
            open,
            local: locally,
            closed,
            deferred_held: deferred.held(),
            deferred_settled: deferred.replayed.load(Ordering::Relaxed),
            deferred_dropped: deferred.dropped.load(Ordering::Relaxed),
            bytes: local.bytes(),
        }
    }

    pub(super) fn new(active: &ActivePolicy, nodes: u32, now: Timestamp) -> Self {
        Self {
            local: Local::new(active, nodes, now),
            watch: Watch::default(),
            deferred: Deferred::new(),
            answers: [const { AtomicU64::new(0) }; 3],
        }
    }

    /// Follows a policy that became active after another.
    pub(super) fn follow(&self, before: &ActivePolicy, active: &ActivePolicy, now: Timestamp) {
        self.deferred.carry(&self.local, before, now);
        self.local.reshape(active, self.local.nodes(), now);
    }

    /// Follows the number of nodes, and the active policy if its swap was missed.
    fn attend(&self, nodes: u32, active: &ActivePolicy, now: Timestamp) {
        if let Some(nodes) = self.local.wants(nodes, || self.watch.is_shaken(now), active) {
            self.deferred.carry(&self.local, active, now);
            self.local.reshape(active, nodes, now);
        }
    }

    pub(super) fn drop_deferred(&self) {
        self.deferred.drop_all();
    }

    /// Refunds to the share units that the store knows of, or that are not to be reported.
    fn give(&self, spot: &KeySlot<'_>, now: Timestamp) {
        self.sides(spot).for_each(|side| self.local.refund(side, spot, now));
    }

    /// Refunds to the share units that were charged locally at an instant: the store does not know of them unless they
    /// were reported since.
    fn take_back(&self, spot: &KeySlot<'_>, charged_at: Timestamp, now: Timestamp) {
        if self.deferred.is_marked_since(spot.charge, charged_at) {
            self.local.refund(Side::Counters, spot, now);
        } else {
            self.give(spot, now);
        }
    }

    /// Takes from the share units that the store knows of, or that are not to be reported.
    fn keep_warm(&self, spot: &KeySlot<'_>, now: Timestamp) {
        self.sides(spot).for_each(|side| self.local.keep_warm(side, spot, now));
    }

    /// Where a counter is kept: a counter with deferred charges has a mark, too.
    fn sides(&self, spot: &KeySlot<'_>) -> impl Iterator<Item = Side> {
        let marks = self.deferred.owes(slice::from_ref(spot.charge)).then_some(Side::Marks);
        std::iter::once(Side::Counters).chain(marks)
    }

    fn count(&self, answers: &[ChargeAnswer]) {
        for answer in answers {
            let place = match answer.source {
                Source::Open => 0,
                Source::Local => 1,
                Source::Closed => 2,
                _ => continue,
            };
            self.answers[place].fetch_add(1, Ordering::Relaxed); // Relaxed: a number for people.
        }
    }
}

fn stages(active: &ActivePolicy, matched: &Match) -> Stages {
    active.policy.limits()[matched.limit as usize].on_store_failure().stages()
}

fn refuses(charge: &Charge<'_>, answer: &ChargeAnswer) -> bool {
    charge.enforcement == Enforcement::Enforced && !answer.outcome.is_allowed()
}

impl<S: Store> Engine<S> {
    /// How many nodes share the store, as far as the store knows.
    pub(super) fn node_count(&self) -> u32 {
        match self.store.nodes() {
            0 => NODES_UNKNOWN,
            nodes => nodes,
        }
    }

    /// The fallback; created when it is first needed.
    pub(super) fn fallback(&self, active: &ActivePolicy, now: Timestamp) -> &Fallback {
        self.fallback.get_or_init(|| {
            let fallback = Box::new(Fallback::new(active, self.node_count(), now));
            fallback.local.follow_wall(self.wall_offset(), now);
            fallback
        })
    }

    /// The answers to the charges of a request: those of the store, which are also counted locally, or those of the fallback.
    pub(super) async fn answers(
        &self,
        active: &ActivePolicy,
        set: &ChargeSet<'_>,
        answered: Result<Answers, StoreFailure>,
        now: Timestamp,
    ) -> Answers {
        match answered {
            Ok(answers) => {
                self.follow_store(active, set, &answers, now);
                match self.fallback.get().filter(|_| set.permit.is_some()) {
                    None => answers,
                    Some(fallback) => {
                        let asked = asked(set);
                        match beyond(fallback, &asked, &answers, set.reported, now) {
                            None => answers,
                            Some(beyond) => {
                                Box::pin(self.without_room(active, &asked, answers, &beyond, now)).await
                            }
                        }
                    }
                }
            }
            // Boxed, because this future is large and every decision that waits would reserve room for it.
            Err(failure) => Box::pin(self.answers_without(active, set, failure, now)).await,
        }
    }

    /// Refunds what the store charged and denies, because the permits of the store and of this node together are too
    /// many.
    async fn without_room(
        &self,
        active: &ActivePolicy,
        asked: &[(&Match, Charge<'_>)],
        mut answers: Answers,
        beyond: &[bool],
        now: Timestamp,
    ) -> Answers {
        let fallback = self.fallback(active, now);
        let each = asked.iter().zip(&answers);
        let taken = each.filter(|((_, charge), answer)| charge.cost > 0 && answer.outcome.is_allowed());
        let taken: Charges<'_> = taken.map(|((_, charge), answer)| charge.refunding(answer)).collect();
        for ((matched, charge), answer) in asked.iter().zip(&answers) {
            if charge.cost > 0 && answer.outcome.is_allowed() {
                fallback.give(&KeySlot::matched(active, matched, &charge.of_instant(now)), now);
            }
        }
        for (answer, _) in answers.iter_mut().zip(beyond).filter(|(_, beyond)| **beyond) {
            let verdict = Verdict::Deny { retry_after: AWAY_RETRY };
            *answer = ChargeAnswer::new(Outcome { verdict, remaining: 0, ..answer.outcome }, Source::Local);
        }
        // If the refund is lost, the store holds the permit until it expires, which errs on the side of denying.
        let _ = self.store.refund(&taken, now).await;
        answers
    }

    async fn answers_without(
        &self,
        active: &ActivePolicy,
        set: &ChargeSet<'_>,
        failure: StoreFailure,
        now: Timestamp,
    ) -> Answers {
        let asked = asked(set);
        let answers = match self.partly(active, &asked, failure, now).await {
            Some(answers) => answers,
            None => self.by_stages(active, &asked, failure, now),
        };
        self.fallback(active, now).count(&answers);
        answers
    }

    /// The answers of the fallback alone, for a caller that cannot wait.
    pub(super) fn fallback_answers(
        &self,
        active: &ActivePolicy,
        set: &ChargeSet<'_>,
        failure: StoreFailure,
        now: Timestamp,
    ) -> Answers {
        let answers = self.by_stages(active, &asked(set), failure, now);
        self.fallback(active, now).count(&answers);
        answers
    }

    /// Counts locally what the store has admitted.
    #[inline]
    pub(super) fn follow_store(
        &self,
        active: &ActivePolicy,
        set: &ChargeSet<'_>,
        answers: &[ChargeAnswer],
        now: Timestamp,
    ) {
        // Most answers that come without asking the store have nothing new to count. An empty list of answers
        // has nothing to count either.
        let is_silent = |answer: &ChargeAnswer| match answer.source {
            Source::Lease => answer.unheard == 0,
            Source::DenyCache => true,
            _ => false,
        };
        if !self.store.never_waits() && !answers.iter().all(is_silent) {
            self.follow_news(active, set, answers, now);
        }
    }

    fn follow_news(
        &self,
        active: &ActivePolicy,
        set: &ChargeSet<'_>,
        answers: &[ChargeAnswer],
        now: Timestamp,
    ) {
        let fallback = self.fallback(active, now);
        // An answer that comes without asking the store says nothing about the store's health.
        let is_known = |answer: &ChargeAnswer| matches!(answer.source, Source::Lease | Source::DenyCache);
        if !answers.iter().all(is_known) {
            fallback.watch.answered(now);
        }
        fallback.attend(self.store.nodes(), active, now);
        self.keep_warm(fallback, active, &asked(set), answers, now);
    }

    fn keep_warm(
        &self,
        fallback: &Fallback,
        active: &ActivePolicy,
        asked: &[(&Match, Charge<'_>)],
        answers: &[ChargeAnswer],
        now: Timestamp,
    ) {
        if asked.iter().zip(answers).any(|((_, charge), answer)| refuses(charge, answer)) {
            return; // Nothing was charged.
        }
        for ((matched, charge), answer) in asked.iter().zip(answers) {
            let news = charge.costing(answer.news(charge.cost));
            if news.cost > 0 && answer.outcome.is_allowed() && stages(active, matched).counts_locally() {
                fallback.keep_warm(&KeySlot::matched(active, matched, &news), now);
            }
        }
    }

    /// Decides when part of the store is unreachable: the reachable part is charged again, and the fallback answers for
    /// the rest. `None` if all of it is unreachable.
    async fn partly(
        &self,
        active: &ActivePolicy,
        asked: &[(&Match, Charge<'_>)],
        failure: StoreFailure,
        now: Timestamp,
    ) -> Option<Answers> {
        let is_away: SmallVec<[bool; 6]> =
            asked.iter().map(|(_, charge)| self.store.is_away(charge)).collect();
        if !failure.is_outage() || is_away.iter().all(|&away| away == is_away[0]) {
            return None;
        }
        let part = |wanted: bool| -> Asked<'_, '_> {
            let with = asked.iter().zip(&is_away).filter(|(_, away)| **away == wanted);
            with.map(|(asked, _)| *asked).collect()
        };
        let (gone, there) = (part(true), part(false));
        let mut ours = self.by_stages(active, &gone, failure, now);
        let refused = gone.iter().zip(&ours).any(|((_, charge), answer)| refuses(charge, answer));
        // A request that this node denies is charged nowhere.
        let charges: Charges<'_> =
            there.iter().map(|(_, charge)| if refused { charge.costing(0) } else { *charge }).collect();
        let (fallback, reported) = (self.fallback(active, now), self.permits_reported());
        let Ok(mut theirs) = self.store.charge(&charges, now).await else {
            self.give_back(active, &gone, &ours, now);
            return None;
        };
        if !refused {
            self.keep_warm(fallback, active, &there, &theirs, now);
            if let Some(beyond) = beyond(fallback, &there, &theirs, reported, now) {
                theirs = self.without_room(active, &there, theirs, &beyond, now).await;
            }
        }
        if !refused && charges.iter().zip(&theirs).any(|(charge, answer)| refuses(charge, answer)) {
            self.give_back(active, &gone, &ours, now);
            let looks: Asked<'_, '_> =
                gone.iter().map(|(matched, charge)| (*matched, charge.costing(0))).collect();
            ours = self.by_stages(active, &looks, failure, now);
        }
        let (mut ours, mut theirs) = (ours.into_iter(), theirs.into_iter());
        let merged: Option<Answers> =
            is_away.iter().map(|&away| if away { ours.next() } else { theirs.next() }).collect();
        merged
    }

    /// Decides without the store, each limit by its stage. All or nothing: an admitted request is charged to all
    /// limits.
    fn by_stages(
        &self,
        active: &ActivePolicy,
        asked: &[(&Match, Charge<'_>)],
        failure: StoreFailure,
        now: Timestamp,
    ) -> Answers {
        let fallback = self.fallback(active, now);
        if failure.is_outage() {
            fallback.watch.failed(now);
        }
        fallback.attend(self.store.nodes(), active, now);
        let courses: SmallVec<[Course; 6]> = asked
            .iter()
            .map(|(matched, charge)| {
                let stages = stages(active, matched);
                let stage = self.stage(fallback, stages, charge, failure, now);
                Course { stage, stages, is_reported: failure.is_outage() }
            })
            .collect();
        let all = |takes: bool| -> Answers {
            let each = asked.iter().zip(&courses);
            each.map(|((matched, charge), course)| {
                one(fallback, active, matched, charge, *course, takes, now)
            })
            .collect()
        };
        let refused = |answers: &Answers| {
            asked.iter().zip(answers).any(|((_, charge), answer)| refuses(charge, answer))
        };
        // A single limit is asked and charged in one step; several limits are all asked before any is charged.
        let takes_immediately = asked.len() == 1;
        let answers = all(takes_immediately);
        if takes_immediately || refused(&answers) {
            if !refused(&answers) {
                note(fallback, asked, &answers, failure);
            }
            return answers;
        }
        let answers = all(true);
        if refused(&answers) {
            // A concurrent request took the units.
            self.give_back(active, asked, &answers, now);
        } else {
            note(fallback, asked, &answers, failure);
        }
        answers
    }

    fn stage(
        &self,
        fallback: &Fallback,
        stages: Stages,
        charge: &Charge<'_>,
        failure: StoreFailure,
        now: Timestamp,
    ) -> Stage {
        if !failure.is_outage() {
            // A faulty counter is no outage: it is counted locally, and never opened.
            return if stages.counts_locally() { Stage::Local } else { Stage::Closed };
        }
        let away = self.store.away_for(charge, now).unwrap_or_else(|| fallback.watch.away_for(now));
        fallback.watch.stage(stages, away, now)
    }

    /// Takes back what was charged locally.
    fn give_back(
        &self,
        active: &ActivePolicy,
        asked: &[(&Match, Charge<'_>)],
        answers: &[ChargeAnswer],
        now: Timestamp,
    ) {
        let fallback = self.fallback(active, now);
        for ((matched, charge), answer) in asked.iter().zip(answers) {
            if !answer.outcome.is_allowed() || charge.cost == 0 {
                continue;
            }
            let charge = &charge.of_instant(now);
            let spot = KeySlot::matched(active, matched, charge);
            match answer.source {
                Source::Open => {
                    fallback.give(&spot, now);
                    fallback.deferred.take_back_open(charge);
                }
                Source::Local => fallback.local.refund(Side::Counters, &spot, now),
                _ => continue,
            }
            if matches!(charge.quota, Quota::Concurrency(_)) {
                fallback.deferred.permits.take_back(charge);
            }
        }
    }
}

/// A set, limit by limit.
fn asked<'q, 'l>(set: &'q ChargeSet<'l>) -> Asked<'q, 'l> {
    set.matches.iter().zip(set.charges.iter().copied()).collect()
}

/// Whether a permit that the store granted is one too many, beside those that it may not have known of. The charge was
/// sent when the store had recorded `reported` permits.
fn is_beyond(
    fallback: &Fallback,
    charge: &Charge<'_>,
    answer: &ChargeAnswer,
    reported: u64,
    now: Timestamp,
) -> bool {
    matches!(charge.quota, Quota::Concurrency(_))
        && charge.enforcement == Enforcement::Enforced
        && charge.cost > 0
        && answer.outcome.is_allowed()
        && fallback.deferred.permits.unknown(charge, reported, now) > answer.outcome.remaining
}

/// Which answers of the store are such permits; `None` if there are none.
fn beyond(
    fallback: &Fallback,
    asked: &[(&Match, Charge<'_>)],
    answers: &[ChargeAnswer],
    reported: u64,
    now: Timestamp,
) -> Option<SmallVec<[bool; 6]>> {
    let each = asked.iter().zip(answers);
    let beyond: SmallVec<[bool; 6]> =
        each.map(|((_, charge), answer)| is_beyond(fallback, charge, answer, reported, now)).collect();
    beyond.contains(&true).then_some(beyond)
}

/// Records what must be reported to the store about an admitted request.
fn note(
    fallback: &Fallback,
    asked: &[(&Match, Charge<'_>)],
    answers: &[ChargeAnswer],
    failure: StoreFailure,
) {
    for ((_, charge), answer) in asked.iter().zip(answers) {
        let is_admitted = answer.outcome.is_allowed() && charge.cost > 0;
        // A permit that the store may have granted already is reported, too: it has an id, and counts once.
        if is_admitted && answer.source == Source::Local && failure.is_outage() {
            fallback.deferred.add(charge);
        }
    }
}

/// What one limit does without its store.
#[derive(Clone, Copy)]
struct Course {
    stage: Stage,
    stages: Stages,
    /// Whether it is reported to the store when that is back.
    is_reported: bool,
}

/// The answer of one limit in its stage.
fn one(
    fallback: &Fallback,
    active: &ActivePolicy,
    matched: &Match,
    charge: &Charge<'_>,
    Course { stage, stages, is_reported }: Course,
    takes: bool,
    now: Timestamp,
) -> ChargeAnswer {
    let (local, spot) = (&fallback.local, KeySlot::matched(active, matched, charge));
    let closed = || uncounted(charge, Verdict::Deny { retry_after: AWAY_RETRY }, Source::Closed);
    match stage {
        Stage::Closed => closed(),
        Stage::Open if local.is_below_ceiling(charge, stages.open_up_to, takes, now) => {
            if takes && charge.cost > 0 {
                fallback.keep_warm(&spot, now);
                if !matches!(charge.quota, Quota::Concurrency(_)) {
                    let held = || Held::new(&active.policy, matched, charge, Source::Open).into();
                    fallback.deferred.add_open(local, active, charge, held, now);
                }
            }
            uncounted(charge, Verdict::Allow, Source::Open)
        }
        Stage::Open | Stage::Local => {
            let held = || Held::new(&active.policy, matched, charge, Source::Local).into();
            let is_place = matches!(charge.quota, Quota::Concurrency(_));
            if takes && charge.cost > 0 && is_place && is_reported {
                // Before the grant: a concurrent answer of the store then finds this permit here, or the share already
                // counts the store's permit.
                if !fallback.deferred.permits.announce(charge, held, now) {
                    return closed();
                }
            } else if takes && charge.cost > 0 && !is_place {
                fallback.deferred.begin(local, active, charge, held, now);
            }
            let answer = local.ask(&spot, takes, now).unwrap_or_else(|_| closed());
            if takes && is_place && !answer.outcome.is_allowed() {
                fallback.deferred.permits.take_back(charge);
            }
            answer
        }
    }
}

/// An answer without a counter.
fn uncounted(charge: &Charge<'_>, verdict: Verdict, source: Source) -> ChargeAnswer {
    let limit = charge.quota.capacity();
    let outcome =
        Outcome { verdict, limit, remaining: 0, next_unit_after: Ticks::ZERO, reset_after: Ticks::ZERO };
    ChargeAnswer::new(outcome, source)
}
