//! Decisions without the store: each limit answers by its stage. All or nothing, as in the store: an admitted request
//! is charged to all limits.

use smallvec::SmallVec;

use super::FallbackContext;
use super::local::{AWAY_RETRY, Access, KeySlot, Side};
use super::watch::Stage;
use crate::active::ActivePolicy;
use crate::decision::Held;
use crate::outcome::{Outcome, Source, Verdict};
use crate::policy::{Match, Stages};
use crate::quota::Quota;
use crate::store::{Answers, Charge, ChargeAnswer, Charges, Enforcement, Store, StoreFailure};

/// The matches and charges of a request, limit by limit.
pub(crate) type Asked<'q, 'l> = SmallVec<[(&'q Match, Charge<'l>); 6]>;

fn stages(active: &ActivePolicy, matched: &Match) -> Stages {
    active.policy.limits()[matched.limit as usize].on_store_failure().stages()
}

fn refuses(charge: &Charge<'_>, answer: &ChargeAnswer) -> bool {
    charge.enforcement == Enforcement::Enforced && !answer.outcome.is_allowed()
}

fn is_refused(asked: &[(&Match, Charge<'_>)], answers: &[ChargeAnswer]) -> bool {
    asked.iter().zip(answers).any(|((_, charge), answer)| refuses(charge, answer))
}

/// Whether answers contain units that the store admitted and this node has not counted yet. Most answers that come
/// without asking the store do not.
#[inline]
pub(crate) fn has_news(answers: &[ChargeAnswer]) -> bool {
    answers.iter().any(|answer| match answer.source {
        Source::Lease => answer.unheard != 0,
        Source::DenyCache => false,
        _ => true,
    })
}

impl<S: Store> FallbackContext<'_, S> {
    /// Counts locally what the store has admitted.
    pub(crate) fn follow_store(&self, asked: &[(&Match, Charge<'_>)], answers: &[ChargeAnswer]) {
        // An answer that comes without asking the store says nothing about the store's health.
        let is_known = |answer: &ChargeAnswer| matches!(answer.source, Source::Lease | Source::DenyCache);
        if !answers.iter().all(is_known) {
            self.fallback.watch.answered(self.now);
        }
        self.follow_nodes();
        self.charge_share(asked, answers);
    }

    /// Follows the number of nodes, and the active policy if its swap was missed.
    pub(super) fn follow_nodes(&self) {
        self.fallback.follow_nodes(self.store.nodes(), self.active, self.now);
    }

    fn charge_share(&self, asked: &[(&Match, Charge<'_>)], answers: &[ChargeAnswer]) {
        if is_refused(asked, answers) {
            return; // Nothing was charged.
        }
        for ((matched, charge), answer) in asked.iter().zip(answers) {
            let news = charge.costing(answer.news(charge.cost));
            let is_permit = matches!(charge.quota, Quota::Concurrency(_)); // `within_limits` records it.
            if news.cost > 0
                && !is_permit
                && answer.outcome.is_allowed()
                && stages(self.active, matched).counts_locally()
            {
                self.fallback.charge_share(&KeySlot::matched(self.active, matched, &news), self.now);
            }
        }
    }

    /// The store's answers, or denials and a refund if they grant permits that are too many beside those of this node.
    /// The charge was sent when the store had recorded `reported` permits. Permits are recorded here.
    pub(crate) async fn within_limits(
        &self,
        asked: &[(&Match, Charge<'_>)],
        mut answers: Answers,
        reported: u64,
    ) -> Answers {
        if is_refused(asked, &answers) {
            return answers; // Nothing was charged.
        }
        let (fallback, now) = (self.fallback, self.now);
        let each = asked.iter().zip(&answers);
        let beyond: SmallVec<[bool; 6]> = each
            .map(|((matched, charge), answer)| self.is_beyond(matched, charge, answer, reported))
            .collect();
        if !beyond.contains(&true) {
            return answers;
        }
        let mut taken = Charges::new();
        for ((matched, charge), answer) in asked.iter().zip(&answers) {
            if charge.cost > 0 && answer.outcome.is_allowed() {
                fallback.refund_share(&KeySlot::matched(self.active, matched, &charge.of_instant(now)), now);
                taken.push(charge.refunding(answer));
            }
        }
        for (answer, _) in answers.iter_mut().zip(beyond).filter(|(_, beyond)| *beyond) {
            let verdict = Verdict::Deny { retry_after: AWAY_RETRY };
            *answer = ChargeAnswer::new(Outcome { verdict, remaining: 0, ..answer.outcome }, Source::Local);
        }
        // If the refund is lost, the store holds the permit until it expires, which errs on the side of denying.
        let _ = self.store.refund(&taken, now).await;
        answers
    }

    /// Records a permit that the store granted. Returns whether it is one too many, because this node has granted others
    /// of which the store may not have known. The charge was sent when the store had recorded `reported` permits.
    ///
    /// It is one too many if the store left fewer units than those others have. It is also one too many if this node's
    /// permits exceed the limit with it: the answer may be late, and what the store left then may be granted since to a
    /// later charge, whose answer came first.
    fn is_beyond(&self, matched: &Match, charge: &Charge<'_>, answer: &ChargeAnswer, reported: u64) -> bool {
        let FallbackContext { fallback, active, now, .. } = *self;
        let is_granted = matches!(charge.quota, Quota::Concurrency(_))
            && charge.cost > 0
            && answer.outcome.is_allowed()
            && stages(active, matched).counts_locally();
        if !is_granted {
            return false;
        }
        // Recorded before it is compared: a permit that this node grants alone is either listed by now, or the share
        // that is asked for it counts this one.
        let has_room = fallback.local.record_permit(&KeySlot::matched(active, matched, charge), now);
        let unknown = fallback.deferred.permits.unknown(charge, reported, now);
        let is_many = unknown > answer.outcome.remaining || (unknown > 0 && !has_room);
        charge.enforcement == Enforcement::Enforced && is_many
    }

    /// The answers for a store that failed. Where part of it is reachable, that part is asked again.
    pub(crate) async fn answers(&self, asked: &[(&Match, Charge<'_>)], failure: StoreFailure) -> Answers {
        match self.partly(asked, failure).await {
            Some(answers) => {
                self.fallback.count(&answers);
                answers
            }
            None => self.local_answers(asked, failure),
        }
    }

    /// The answers of the fallback alone, for a caller that cannot wait.
    pub(crate) fn local_answers(&self, asked: &[(&Match, Charge<'_>)], failure: StoreFailure) -> Answers {
        let answers = self.by_stages(asked, failure);
        self.fallback.count(&answers);
        answers
    }

    /// Decides when part of the store is unreachable: the reachable part is charged again, and the fallback answers for
    /// the rest. `None` if all of it is unreachable.
    async fn partly(&self, asked: &[(&Match, Charge<'_>)], failure: StoreFailure) -> Option<Answers> {
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
        let mut ours = self.by_stages(&gone, failure);
        let refused = is_refused(&gone, &ours);
        // A request that this node denies is charged nowhere.
        let charges: Charges<'_> =
            there.iter().map(|(_, charge)| if refused { charge.costing(0) } else { *charge }).collect();
        let reported = self.fallback.permits_reported();
        let Ok(mut theirs) = self.store.charge(&charges, self.now).await else {
            self.give_back(&gone, &ours);
            return None;
        };
        if !refused {
            self.charge_share(&there, &theirs);
            theirs = self.within_limits(&there, theirs, reported).await;
            if is_refused(&there, &theirs) {
                self.give_back(&gone, &ours);
                let looks: Asked<'_, '_> =
                    gone.iter().map(|(matched, charge)| (*matched, charge.costing(0))).collect();
                ours = self.by_stages(&looks, failure);
            }
        }
        let (mut ours, mut theirs) = (ours.into_iter(), theirs.into_iter());
        is_away.iter().map(|&away| if away { ours.next() } else { theirs.next() }).collect()
    }

    /// Decides without the store, each limit by its stage.
    fn by_stages(&self, asked: &[(&Match, Charge<'_>)], failure: StoreFailure) -> Answers {
        if failure.is_outage() {
            self.fallback.watch.failed(self.now);
        }
        self.follow_nodes();
        let plans: SmallVec<[StagePlan; 6]> = asked
            .iter()
            .map(|(matched, charge)| {
                let stages = stages(self.active, matched);
                let stage = self.stage(stages, charge, failure);
                StagePlan { stage, stages, is_reported: failure.is_outage() }
            })
            .collect();
        let all = |access: Access| -> Answers {
            let each = asked.iter().zip(&plans);
            each.map(|((matched, charge), plan)| self.one(matched, charge, *plan, access)).collect()
        };
        // A single limit is asked and charged in one step; several limits are all asked before any is charged.
        let is_single = asked.len() == 1;
        let mut answers = all(if is_single { Access::Take } else { Access::Look });
        if !is_single && !is_refused(asked, &answers) {
            answers = all(Access::Take);
            if is_refused(asked, &answers) {
                // A concurrent request took the units.
                self.give_back(asked, &answers);
            }
        }
        if !is_refused(asked, &answers) && failure.is_outage() {
            self.note(asked, &answers);
        }
        answers
    }

    fn stage(&self, stages: Stages, charge: &Charge<'_>, failure: StoreFailure) -> Stage {
        if !failure.is_outage() {
            // A faulty counter is no outage: it is counted locally, and never opened.
            return if stages.counts_locally() { Stage::Local } else { Stage::Closed };
        }
        let watch = &self.fallback.watch;
        let away = self.store.away_for(charge, self.now).unwrap_or_else(|| watch.away_for(self.now));
        watch.stage(stages, away, self.now)
    }

    /// Takes back what was charged locally.
    fn give_back(&self, asked: &[(&Match, Charge<'_>)], answers: &[ChargeAnswer]) {
        let (fallback, now) = (self.fallback, self.now);
        for ((matched, charge), answer) in asked.iter().zip(answers) {
            if !answer.outcome.is_allowed() || charge.cost == 0 {
                continue;
            }
            let charge = &charge.of_instant(now);
            let key_slot = KeySlot::matched(self.active, matched, charge);
            match answer.source {
                Source::Open => {
                    fallback.refund_share(&key_slot, now);
                    fallback.deferred.take_back_open(charge);
                }
                Source::Local => fallback.local.refund(Side::Counters, &key_slot, now),
                _ => continue,
            }
            if matches!(charge.quota, Quota::Concurrency(_)) {
                fallback.deferred.permits.take_back(charge);
            }
        }
    }

    /// Records what must be reported to the store about an admitted request.
    fn note(&self, asked: &[(&Match, Charge<'_>)], answers: &[ChargeAnswer]) {
        for ((_, charge), answer) in asked.iter().zip(answers) {
            // A permit that the store may have granted already is reported, too: it has an id, and counts once.
            if answer.outcome.is_allowed() && charge.cost > 0 && answer.source == Source::Local {
                self.fallback.deferred.add(charge);
            }
        }
    }

    /// The answer of one limit in its stage.
    fn one(
        &self,
        matched: &Match,
        charge: &Charge<'_>,
        StagePlan { stage, stages, is_reported }: StagePlan,
        access: Access,
    ) -> ChargeAnswer {
        let FallbackContext { fallback, active, now, .. } = *self;
        let takes = access == Access::Take;
        let (local, key_slot) = (&fallback.local, KeySlot::matched(active, matched, charge));
        let closed = || uncounted(charge, Verdict::Deny { retry_after: AWAY_RETRY }, Source::Closed);
        match stage {
            Stage::Closed => closed(),
            Stage::Open if local.is_below_ceiling(charge, stages.open_up_to, access, now) => {
                if takes && charge.cost > 0 {
                    fallback.charge_share(&key_slot, now);
                    if !matches!(charge.quota, Quota::Concurrency(_)) {
                        let held = || Held::new(&active.policy, matched, charge, Source::Open).into();
                        fallback.deferred.add_open(local, active, charge, held, now);
                    }
                }
                uncounted(charge, Verdict::Allow, Source::Open)
            }
            Stage::Open | Stage::Local => {
                let held = || Held::new(&active.policy, matched, charge, Source::Local).into();
                let is_permit = matches!(charge.quota, Quota::Concurrency(_));
                if takes && charge.cost > 0 && is_permit && is_reported {
                    // Before the grant: a concurrent answer of the store then finds this permit here, or the share
                    // already counts the store's permit.
                    if !fallback.deferred.permits.announce(charge, held, now) {
                        return closed();
                    }
                } else if takes && charge.cost > 0 && !is_permit {
                    fallback.deferred.begin(local, active, charge, held, now);
                }
                let answer = local.ask(&key_slot, access, now).unwrap_or_else(|_| closed());
                if takes && is_permit && !answer.outcome.is_allowed() {
                    fallback.deferred.permits.take_back(charge);
                }
                answer
            }
        }
    }
}

/// How one limit decides without its store.
#[derive(Clone, Copy)]
struct StagePlan {
    stage: Stage,
    stages: Stages,
    /// Whether it is reported to the store when that is back.
    is_reported: bool,
}

/// An answer without a counter.
fn uncounted(charge: &Charge<'_>, verdict: Verdict, source: Source) -> ChargeAnswer {
    let limit = charge.quota.capacity();
    ChargeAnswer::new(Outcome { limit, ..Outcome::uncounted(verdict) }, source)
}
