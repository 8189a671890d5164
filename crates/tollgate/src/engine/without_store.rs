//! What is answered when the store does not: each limit has stages of its own, from open over this node's share to closed. The share is
//! counted with every decision, so that it is warm; what it admits is told to the store when it is back.

use std::slice;
use std::sync::atomic::{AtomicU64, Ordering};

use smallvec::SmallVec;

use super::live::Live;
use super::{Charges, Engine, Question};
use crate::decision::Held;
use crate::outcome::{Outcome, Source, Verdict};
use crate::policy::{Match, Stages};
use crate::quota::Quota;
use crate::store::{Answer, Answers, Charge, Stance, Store, StoreFailure};
use crate::time::{Ticks, Timestamp};

mod count;
mod counter;
mod debts;
mod local;
mod permits;
mod replay;
mod settle;
mod share;
mod watch;

pub use debts::DEBTS_MAX;
use debts::Debts;
use local::{AWAY_RETRY, Local, Side, Spot};
pub use replay::Replayed;
use watch::{Stage, Watch};

/// How many nodes share a store that cannot tell.
const NODES_UNKNOWN: u32 = 3;

/// What stands in for a store that can be away. A store that answers at once has none.
pub(super) struct Standby {
    pub(super) local: Local,
    watch: Watch,
    debts: Debts,
    answers: [AtomicU64; 3],
}

/// What stood in for the store so far, in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StandIn {
    /// How many nodes each limit is shared by.
    pub nodes: u32,
    /// How long limits were open in all.
    pub open_for: Ticks,
    /// Answers of open limits.
    pub open: u64,
    /// Answers by this node's share.
    pub local: u64,
    /// Answers of closed limits.
    pub closed: u64,
    /// Counters that the store must still be told about.
    pub debts_held: usize,
    /// Counters that it was told about.
    pub debts_replayed: u64,
    /// Counters that it was not, or perhaps not, told about: there were too many, or an answer was lost.
    pub debts_dropped: u64,
    /// Bytes of the counters that stand in.
    pub bytes: u64,
}

/// One limit's part of a question.
type Asked<'q, 'l> = SmallVec<[(&'q Match, Charge<'l>); 6]>;

impl Standby {
    pub(super) fn new(live: &Live, nodes: u32, now: Timestamp) -> Self {
        Self {
            local: Local::new(live, nodes, now),
            watch: Watch::default(),
            debts: Debts::new(),
            answers: [const { AtomicU64::new(0) }; 3],
        }
    }

    /// Follows a policy that was put in force after another.
    pub(super) fn follow(&self, before: &Live, live: &Live, now: Timestamp) {
        self.debts.carry(&self.local, before, now);
        self.local.reshape(live, self.local.nodes(), now);
    }

    /// Follows the number of nodes, and the policy in force if that was missed.
    fn attend(&self, nodes: u32, live: &Live, now: Timestamp) {
        if let Some(nodes) = self.local.wants(nodes, || self.watch.is_shaken(now), live) {
            self.debts.carry(&self.local, live, now);
            self.local.reshape(live, nodes, now);
        }
    }

    pub(super) fn drop_debts(&self) {
        self.debts.drop_all();
    }

    /// Gives back to the share what the store knows of, or is not to be told.
    fn give(&self, spot: &Spot<'_>, now: Timestamp) {
        self.sides(spot).for_each(|side| self.local.refund(side, spot, now));
    }

    /// Gives back to the share what was charged here at an instant: the store does not know of it, unless it was told since.
    fn take_back(&self, spot: &Spot<'_>, charged_at: Timestamp, now: Timestamp) {
        if self.debts.is_marked_since(spot.charge, charged_at) {
            self.local.refund(Side::Counters, spot, now);
        } else {
            self.give(spot, now);
        }
    }

    /// Takes from the share what the store knows of, or is not to be told.
    fn keep_warm(&self, spot: &Spot<'_>, now: Timestamp) {
        self.sides(spot).for_each(|side| self.local.keep_warm(side, spot, now));
    }

    /// Where a counter is kept: one with debts has a mark, too.
    fn sides(&self, spot: &Spot<'_>) -> impl Iterator<Item = Side> {
        let marks = self.debts.owes(slice::from_ref(spot.charge)).then_some(Side::Marks);
        std::iter::once(Side::Counters).chain(marks)
    }

    fn count(&self, answers: &[Answer]) {
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

fn stages(live: &Live, matched: &Match) -> Stages {
    live.policy.limits()[matched.limit as usize].on_store_failure().stages()
}

fn refuses(charge: &Charge<'_>, answer: &Answer) -> bool {
    charge.stance == Stance::Enforced && !answer.outcome.is_allowed()
}

impl<S: Store> Engine<S> {
    /// What stands in for the store; made when it is first needed.
    pub(super) fn standby(&self, live: &Live, now: Timestamp) -> &Standby {
        self.standby.get_or_init(|| {
            let standby = Box::new(Standby::new(live, self.nodes(), now));
            standby.local.follow_wall(self.wall(), now);
            standby
        })
    }

    /// How many nodes share the store, as far as it can tell.
    pub fn nodes(&self) -> u32 {
        match self.store.nodes() {
            0 => NODES_UNKNOWN,
            nodes => nodes,
        }
    }

    /// What stood in for the store so far; none for a store that is never away.
    #[must_use]
    pub fn stand_in(&self) -> Option<StandIn> {
        let Standby { local, watch, debts, answers } = &**self.standby.get()?;
        let [open, locally, closed] = answers.each_ref().map(|number| number.load(Ordering::Relaxed));
        Some(StandIn {
            nodes: local.nodes(),
            open_for: watch.open_for(),
            open,
            local: locally,
            closed,
            debts_held: debts.held(),
            debts_replayed: debts.replayed.load(Ordering::Relaxed),
            debts_dropped: debts.dropped.load(Ordering::Relaxed),
            bytes: local.bytes(),
        })
    }

    /// The answers to a question: the store's, which are also counted here, or those that stand in for them.
    pub(super) async fn answers(
        &self,
        live: &Live,
        question: &Question<'_>,
        answered: Result<Answers, StoreFailure>,
        now: Timestamp,
    ) -> Answers {
        match answered {
            Ok(answers) => {
                self.follow_store(live, question, &answers, now);
                match self.standby.get().filter(|_| question.permit.is_some()) {
                    None => answers,
                    Some(standby) => {
                        let asked = asked(question);
                        match beyond(standby, &asked, &answers, question.reported, now) {
                            None => answers,
                            Some(beyond) => {
                                Box::pin(self.without_room(live, &asked, answers, &beyond, now)).await
                            }
                        }
                    }
                }
            }
            // Apart: it is large, and every decision that waits would have room for it.
            Err(failure) => Box::pin(self.answers_without(live, question, failure, now)).await,
        }
    }

    /// Gives back what the store charged, and refuses, since it gave places that are too many beside those that this node gave.
    async fn without_room(
        &self,
        live: &Live,
        asked: &[(&Match, Charge<'_>)],
        mut answers: Answers,
        beyond: &[bool],
        now: Timestamp,
    ) -> Answers {
        let standby = self.standby(live, now);
        let each = asked.iter().zip(&answers);
        let taken = each.filter(|((_, charge), answer)| charge.cost > 0 && answer.outcome.is_allowed());
        let taken: Charges<'_> = taken.map(|((_, charge), answer)| charge.refunding(answer)).collect();
        for ((matched, charge), answer) in asked.iter().zip(&answers) {
            if charge.cost > 0 && answer.outcome.is_allowed() {
                standby.give(&Spot::matched(live, matched, &charge.of_instant(now)), now);
            }
        }
        for (answer, _) in answers.iter_mut().zip(beyond).filter(|(_, beyond)| **beyond) {
            let verdict = Verdict::Deny { retry_after: AWAY_RETRY };
            *answer = Answer::new(Outcome { verdict, remaining: 0, ..answer.outcome }, Source::Local);
        }
        // A refund that is lost is a place that the store holds until it expires: on the side of denying.
        let _ = self.store.refund(&taken, now).await;
        answers
    }

    async fn answers_without(
        &self,
        live: &Live,
        question: &Question<'_>,
        failure: StoreFailure,
        now: Timestamp,
    ) -> Answers {
        let asked = asked(question);
        let answers = match self.partly(live, &asked, failure, now).await {
            Some(answers) => answers,
            None => self.by_stages(live, &asked, failure, now),
        };
        self.standby(live, now).count(&answers);
        answers
    }

    /// The same where nobody can wait.
    pub(super) fn answers_at_once(
        &self,
        live: &Live,
        question: &Question<'_>,
        failure: StoreFailure,
        now: Timestamp,
    ) -> Answers {
        let answers = self.by_stages(live, &asked(question), failure, now);
        self.standby(live, now).count(&answers);
        answers
    }

    /// Counts here what the store has admitted.
    #[inline]
    pub(super) fn follow_store(
        &self,
        live: &Live,
        question: &Question<'_>,
        answers: &[Answer],
        now: Timestamp,
    ) {
        // Of what is known without asking most answers have nothing to tell. Where nothing was asked nothing was heard either.
        let is_silent = |answer: &Answer| match answer.source {
            Source::Lease => answer.unheard == 0,
            Source::DenyCache => true,
            _ => false,
        };
        if !self.store.answers_at_once() && !answers.iter().all(is_silent) {
            self.follow_news(live, question, answers, now);
        }
    }

    fn follow_news(&self, live: &Live, question: &Question<'_>, answers: &[Answer], now: Timestamp) {
        let standby = self.standby(live, now);
        // What is known without asking says nothing about the store.
        let is_known = |answer: &Answer| matches!(answer.source, Source::Lease | Source::DenyCache);
        if !answers.iter().all(is_known) {
            standby.watch.answered(now);
        }
        standby.attend(self.store.nodes(), live, now);
        self.keep_warm(standby, live, &asked(question), answers, now);
    }

    fn keep_warm(
        &self,
        standby: &Standby,
        live: &Live,
        asked: &[(&Match, Charge<'_>)],
        answers: &[Answer],
        now: Timestamp,
    ) {
        if asked.iter().zip(answers).any(|((_, charge), answer)| refuses(charge, answer)) {
            return; // Nothing was charged.
        }
        for ((matched, charge), answer) in asked.iter().zip(answers) {
            let news = charge.costing(answer.news(charge.cost));
            if news.cost > 0 && answer.outcome.is_allowed() && stages(live, matched).counts_locally() {
                standby.keep_warm(&Spot::matched(live, matched, &news), now);
            }
        }
    }

    /// Where a part of the store is away and another is not: what is there is asked again, and the other stands in for the rest. None if
    /// all of it is away.
    async fn partly(
        &self,
        live: &Live,
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
        let mut ours = self.by_stages(live, &gone, failure, now);
        let refused = gone.iter().zip(&ours).any(|((_, charge), answer)| refuses(charge, answer));
        // What this node refuses is charged nowhere.
        let charges: Charges<'_> =
            there.iter().map(|(_, charge)| if refused { charge.costing(0) } else { *charge }).collect();
        let (standby, reported) = (self.standby(live, now), self.permits_reported());
        let Ok(mut theirs) = self.store.charge(&charges, now).await else {
            self.give_back(live, &gone, &ours, now);
            return None;
        };
        if !refused {
            self.keep_warm(standby, live, &there, &theirs, now);
            if let Some(beyond) = beyond(standby, &there, &theirs, reported, now) {
                theirs = self.without_room(live, &there, theirs, &beyond, now).await;
            }
        }
        if !refused && charges.iter().zip(&theirs).any(|(charge, answer)| refuses(charge, answer)) {
            self.give_back(live, &gone, &ours, now);
            let looks: Asked<'_, '_> =
                gone.iter().map(|(matched, charge)| (*matched, charge.costing(0))).collect();
            ours = self.by_stages(live, &looks, failure, now);
        }
        let (mut ours, mut theirs) = (ours.into_iter(), theirs.into_iter());
        let merged: Option<Answers> =
            is_away.iter().map(|&away| if away { ours.next() } else { theirs.next() }).collect();
        merged
    }

    /// Decides without the store, each limit by the stage that it is in. All or nothing: what is admitted is charged for all.
    fn by_stages(
        &self,
        live: &Live,
        asked: &[(&Match, Charge<'_>)],
        failure: StoreFailure,
        now: Timestamp,
    ) -> Answers {
        let standby = self.standby(live, now);
        if failure.is_outage() {
            standby.watch.failed(now);
        }
        standby.attend(self.store.nodes(), live, now);
        let courses: SmallVec<[Course; 6]> = asked
            .iter()
            .map(|(matched, charge)| {
                let stages = stages(live, matched);
                let stage = self.stage(standby, stages, charge, failure, now);
                Course { stage, stages, is_reported: failure.is_outage() }
            })
            .collect();
        let all = |takes: bool| -> Answers {
            let each = asked.iter().zip(&courses);
            each.map(|((matched, charge), course)| one(standby, live, matched, charge, *course, takes, now))
                .collect()
        };
        let refused = |answers: &Answers| {
            asked.iter().zip(answers).any(|((_, charge), answer)| refuses(charge, answer))
        };
        // One limit is asked and charged in one step; of several each is asked before any is charged.
        let takes_at_once = asked.len() == 1;
        let answers = all(takes_at_once);
        if takes_at_once || refused(&answers) {
            if !refused(&answers) {
                note(standby, asked, &answers, failure);
            }
            return answers;
        }
        let answers = all(true);
        if refused(&answers) {
            // Another request was faster.
            self.give_back(live, asked, &answers, now);
        } else {
            note(standby, asked, &answers, failure);
        }
        answers
    }

    fn stage(
        &self,
        standby: &Standby,
        stages: Stages,
        charge: &Charge<'_>,
        failure: StoreFailure,
        now: Timestamp,
    ) -> Stage {
        if !failure.is_outage() {
            // A counter that is out of order is no outage: it is counted here, and never opened.
            return if stages.counts_locally() { Stage::Local } else { Stage::Closed };
        }
        let away = self.store.away_for(charge, now).unwrap_or_else(|| standby.watch.away_for(now));
        standby.watch.stage(stages, away, now)
    }

    /// Takes back what was charged here.
    fn give_back(&self, live: &Live, asked: &[(&Match, Charge<'_>)], answers: &[Answer], now: Timestamp) {
        let standby = self.standby(live, now);
        for ((matched, charge), answer) in asked.iter().zip(answers) {
            if !answer.outcome.is_allowed() || charge.cost == 0 {
                continue;
            }
            let charge = &charge.of_instant(now);
            let spot = Spot::matched(live, matched, charge);
            match answer.source {
                Source::Open => {
                    standby.give(&spot, now);
                    standby.debts.take_back_open(charge);
                }
                Source::Local => standby.local.refund(Side::Counters, &spot, now),
                _ => continue,
            }
            if matches!(charge.quota, Quota::Concurrency(_)) {
                standby.debts.permits.take_back(charge);
            }
        }
    }
}

/// A question, limit by limit.
fn asked<'q, 'l>(question: &'q Question<'l>) -> Asked<'q, 'l> {
    question.matches.iter().zip(question.charges.iter().copied()).collect()
}

/// Whether a place that the store gave is one too many beside those that it may not have known of, as it was asked after it had
/// recorded so many.
fn is_beyond(standby: &Standby, charge: &Charge<'_>, answer: &Answer, reported: u64, now: Timestamp) -> bool {
    matches!(charge.quota, Quota::Concurrency(_))
        && charge.stance == Stance::Enforced
        && charge.cost > 0
        && answer.outcome.is_allowed()
        && standby.debts.permits.unknown(charge, reported, now) > answer.outcome.remaining
}

/// Which answers of the store are such places; none if none is.
fn beyond(
    standby: &Standby,
    asked: &[(&Match, Charge<'_>)],
    answers: &[Answer],
    reported: u64,
    now: Timestamp,
) -> Option<SmallVec<[bool; 6]>> {
    let each = asked.iter().zip(answers);
    let beyond: SmallVec<[bool; 6]> =
        each.map(|((_, charge), answer)| is_beyond(standby, charge, answer, reported, now)).collect();
    beyond.contains(&true).then_some(beyond)
}

/// Takes down what the store must be told of an admitted request.
fn note(standby: &Standby, asked: &[(&Match, Charge<'_>)], answers: &[Answer], failure: StoreFailure) {
    for ((_, charge), answer) in asked.iter().zip(answers) {
        let is_admitted = answer.outcome.is_allowed() && charge.cost > 0;
        // A place that the store may have given already is told to it, too: it has a name, and counts once.
        if is_admitted && answer.source == Source::Local && failure.is_outage() {
            standby.debts.add(charge);
        }
    }
}

/// What one limit does without its store.
#[derive(Clone, Copy)]
struct Course {
    stage: Stage,
    stages: Stages,
    /// Whether the store is told of it when it is back.
    is_reported: bool,
}

/// The answer of one limit in its stage.
fn one(
    standby: &Standby,
    live: &Live,
    matched: &Match,
    charge: &Charge<'_>,
    Course { stage, stages, is_reported }: Course,
    takes: bool,
    now: Timestamp,
) -> Answer {
    let (local, spot) = (&standby.local, Spot::matched(live, matched, charge));
    let closed = || uncounted(charge, Verdict::Deny { retry_after: AWAY_RETRY }, Source::Closed);
    match stage {
        Stage::Closed => closed(),
        Stage::Open if local.is_below_ceiling(charge, stages.open_up_to, takes, now) => {
            if takes && charge.cost > 0 {
                standby.keep_warm(&spot, now);
                if !matches!(charge.quota, Quota::Concurrency(_)) {
                    let held = || Held::new(&live.policy, matched, charge, Source::Open).into();
                    standby.debts.add_open(local, live, charge, held, now);
                }
            }
            uncounted(charge, Verdict::Allow, Source::Open)
        }
        Stage::Open | Stage::Local => {
            let held = || Held::new(&live.policy, matched, charge, Source::Local).into();
            let is_place = matches!(charge.quota, Quota::Concurrency(_));
            if takes && charge.cost > 0 && is_place && is_reported {
                // Before it is given: an answer of the store that comes meanwhile finds it here, or it finds that one in the share.
                if !standby.debts.permits.announce(charge, held, now) {
                    return closed();
                }
            } else if takes && charge.cost > 0 && !is_place {
                standby.debts.begin(local, live, charge, held, now);
            }
            let answer = local.ask(&spot, takes, now).unwrap_or_else(|_| closed());
            if takes && is_place && !answer.outcome.is_allowed() {
                standby.debts.permits.take_back(charge);
            }
            answer
        }
    }
}

/// An answer that no counter stands behind.
fn uncounted(charge: &Charge<'_>, verdict: Verdict, source: Source) -> Answer {
    let limit = charge.quota.capacity();
    let outcome =
        Outcome { verdict, limit, remaining: 0, next_unit_after: Ticks::ZERO, reset_after: Ticks::ZERO };
    Answer::new(outcome, source)
}
