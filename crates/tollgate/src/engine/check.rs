//! The path of a decision: a request is matched with the active policy, its counters are charged, and their answers are
//! combined. [`Engine::try_check`] is the fast path. Where the store must be awaited, it hands over to [`Prepared`].

#[cfg(test)]
mod tests;

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};

use smallvec::SmallVec;

use super::{ATTEMPTS, Engine};
use crate::active::{ActivePolicy, CounterKey};
use crate::algorithm::concurrency::PermitId;
use crate::decision::{Decision, Held, Permit, Status};
use crate::fallback::{Asked, Fallback, FallbackContext, has_news, node_count};
use crate::outcome::Source;
use crate::policy::{Match, Matches};
use crate::quota::Quota;
use crate::request::CheckRequest;
use crate::store::{Answers, Charge, ChargeAnswer, Charges, Enforcement, Store, StoreFailure};
use crate::time::Timestamp;

/// A request with the limits that it matches.
#[derive(Clone, Default)]
pub(super) struct MatchedRequest {
    /// The limits that have a counter for it.
    pub(super) matches: Matches,
    /// The statuses of limits that need no counter.
    pub(super) uncounted: Vec<Status>,
    permit: Option<PermitId>,
}

impl MatchedRequest {
    /// The decision about a request that an enforced limit denies whatever was counted. No other limit is asked.
    #[inline]
    fn without_counters(&self, active: &ActivePolicy) -> Option<Decision> {
        self.uncounted.iter().any(Status::refuses).then(|| {
            let mut decision = Decision::open(Arc::clone(&active.policy));
            decision.add_uncounted(&self.uncounted);
            decision
        })
    }
}

/// A matched request with its charges, under one policy. It is large, so it is filled in place and not moved.
#[derive(Default)]
pub(super) struct ChargeSet<'l> {
    pub(super) matched: MatchedRequest,
    /// The charge of each match.
    pub(super) charges: Charges<'l>,
    /// How many permits of the fallback the store had recorded when it was charged.
    pub(super) permits_reported: u64,
}

impl<'l> ChargeSet<'l> {
    /// The matches and charges, limit by limit.
    fn asked(&self) -> Asked<'_, 'l> {
        self.matched.matches.iter().zip(self.charges.iter().copied()).collect()
    }
}

/// A request whose decision must await the store. It is matched and its keys are hashed, and nothing is charged yet.
pub struct Prepared(Box<PreparedParts>);

/// A counter that a prepared request would be charged to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PreparedCounter<'p> {
    /// The name of its limit.
    pub limit: &'p str,
    /// A hash of its key: that of [`LimitStatus::key_hash`](crate::LimitStatus::key_hash).
    pub key_hash: u64,
    /// The units that the request costs there.
    pub cost: u64,
    /// The quota that it counts by.
    pub quota: &'p Quota,
    /// Whether it may hold the request back.
    pub enforcement: Enforcement,
}

struct PreparedParts {
    active: Arc<ActivePolicy>,
    matched: MatchedRequest,
    /// The counter of each match.
    keys: SmallVec<[CounterKey; 6]>,
}

impl Prepared {
    /// Decides about the request, and awaits the store. `request` is the request that was prepared: it is matched again
    /// only if a newer policy takes over its counters meanwhile.
    ///
    /// It always answers: a failing store leads to a decision chosen by policy, not to an error.
    pub fn check<S: Store>(
        mut self,
        engine: &Engine<S>,
        request: &CheckRequest<'_>,
        now: Timestamp,
    ) -> impl Future<Output = Decision> + Send {
        // Boxed, because the future of a decision that waits is large, and most decisions never wait.
        Box::pin(async move { engine.decide(&mut self, request, now).await })
    }

    /// The counters that the request would be charged to.
    pub fn counters(&self) -> impl Iterator<Item = PreparedCounter<'_>> {
        let PreparedParts { active, matched, keys } = &*self.0;
        let each = matched.matches.iter().zip(keys);
        each.map(|(matched, key)| {
            let limit = &active.policy.limits()[matched.limit as usize];
            PreparedCounter {
                limit: limit.name(),
                key_hash: key.key.digest(),
                cost: matched.cost,
                quota: &limit.quotas()[matched.quota.0 as usize],
                enforcement: key.enforcement,
            }
        })
    }

    fn new(active: Arc<ActivePolicy>, set: ChargeSet<'_>) -> Self {
        let keys = set.charges.iter().map(CounterKey::from).collect();
        Self(Box::new(PreparedParts { active, matched: set.matched, keys }))
    }

    /// The charges, as they were prepared.
    fn charge_set(&self) -> ChargeSet<'_> {
        let PreparedParts { active, matched, keys } = &*self.0;
        let id = matched.permit.unwrap_or(PermitId(0));
        let each = matched.matches.iter().zip(keys);
        let charges = each.map(|(matched, key)| active.charge_key(matched, *key, id)).collect();
        ChargeSet { matched: matched.clone(), charges, permits_reported: 0 }
    }

    /// The units that each limit would be charged; afterwards the request only looks.
    pub(super) fn take_costs(&mut self) -> SmallVec<[(u32, u64); 6]> {
        let each = self.0.matched.matches.iter_mut();
        each.map(|matched| (matched.limit, std::mem::take(&mut matched.cost))).collect()
    }
}

impl fmt::Debug for Prepared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prepared").field("matches", &self.0.matched.matches).finish_non_exhaustive()
    }
}

impl fmt::Display for Prepared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the store must be awaited for a decision; nothing is charged yet")
    }
}

impl std::error::Error for Prepared {}

impl<S: Store> Engine<S> {
    /// Decides about a request, with one descriptor or several. A limit applies at most once, to the first descriptor
    /// that it matches, and no limit sees attributes of two descriptors together. All limits that apply are charged, or
    /// none.
    ///
    /// It always answers: a failing store leads to a decision chosen by policy, not to an error.
    ///
    /// ```
    /// use tollgate::{CheckRequest, Engine};
    /// let limits = "limits: [{name: key, by: [api_key], rate: 9/h}, {name: path, by: [path], rate: 1/h}]";
    /// let engine = Engine::builder().policy(limits.parse()?).build();
    /// let descriptor = CheckRequest::new().with("path", "/a")?.cost(2)?;
    /// let request = CheckRequest::new().with("api_key", "k1")?.and(descriptor);
    /// # pollster::block_on(async {
    /// let decision = engine.check(&request, engine.now()).await;
    /// let cause = decision.cause().unwrap();
    /// assert_eq!((cause.limit.name(), cause.descriptor), ("path", 1));
    /// # });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn check(&self, request: &CheckRequest<'_>, now: Timestamp) -> Decision {
        // The future holds no decision while it waits, because a decision is large.
        let prepared = match self.try_check(request, now) {
            Ok(decision) => return decision,
            Err(prepared) => prepared,
        };
        prepared.check(self, request, now).await
    }

    /// Decides as [`Engine::check`] does, if the store answers without waiting. Memory always does, and leases mostly
    /// do. So an engine on memory needs no async runtime.
    ///
    /// # Errors
    /// When the store must be awaited: nothing was charged, and [`Prepared::check`] decides. It does not match the
    /// request again.
    #[inline]
    pub fn try_check(&self, request: &CheckRequest<'_>, now: Timestamp) -> Result<Decision, Prepared> {
        let now = now.decidable();
        let mut attempts = 0;
        loop {
            let active = self.active.load();
            let mut set = ChargeSet::default();
            if let Some(decision) = self.match_request(&active, request, &mut set, now) {
                return Ok(decision);
            }
            // A penalty takes a second call of the store, which `decide` makes.
            if active.has_penalties() || self.must_reconcile_first(&set.charges) {
                return self.decide_if_ready(Prepared::new(Arc::clone(&active), set), request, now);
            }
            let mut answers = Answers::new();
            let failure = match self.store.try_charge(&set.charges, now, &mut answers) {
                None => return Err(Prepared::new(Arc::clone(&active), set)),
                Some(Err(StoreFailure::Superseded)) if attempts < ATTEMPTS => {
                    attempts += 1;
                    continue;
                }
                Some(charged) => charged.err(),
            };
            match failure {
                None => self.follow_store(&active, &set, &answers, now),
                Some(failure) => {
                    answers = self.fallback_or_new(&active, now).local_answers(&set.asked(), failure);
                }
            }
            return Ok(self.conclude(&active, &set, &answers, failure));
        }
    }

    /// Decides about a prepared request, if the store never waits: `decide` is then ready at the first poll.
    fn decide_if_ready(
        &self,
        mut prepared: Prepared,
        request: &CheckRequest<'_>,
        now: Timestamp,
    ) -> Result<Decision, Prepared> {
        if self.store.never_waits()
            && let Poll::Ready(decision) =
                pin!(self.decide(&mut prepared, request, now)).poll(&mut Context::from_waker(Waker::noop()))
        {
            return Ok(decision);
        }
        Err(prepared)
    }

    /// Matches a request with the active policy and hashes its keys. Nothing is charged, and the store is not asked.
    ///
    /// # Errors
    /// A decision that no counter is needed for.
    pub(super) fn prepare(
        &self,
        request: &CheckRequest<'_>,
        now: Timestamp,
    ) -> Result<Prepared, Box<Decision>> {
        let active = self.active.load_full();
        let mut set = ChargeSet::default();
        match self.match_request(&active, request, &mut set, now) {
            Some(decision) => Err(Box::new(decision)),
            None => Ok(Prepared::new(Arc::clone(&active), set)),
        }
    }

    /// Decides about a prepared request, and awaits the store. If a newer policy takes over its counters meanwhile, it
    /// is prepared again.
    pub(super) async fn decide(
        &self,
        prepared: &mut Prepared,
        request: &CheckRequest<'_>,
        now: Timestamp,
    ) -> Decision {
        let now = now.decidable();
        let mut attempts = 0;
        loop {
            // One policy for the whole decision, so that a reload never splits it.
            let active = Arc::clone(&prepared.0.active);
            let mut set = prepared.charge_set();
            if active.has_penalties() {
                let blocks = Box::pin(self.blocks_of(&active, request, &set, now)).await;
                if !blocks.is_empty()
                    && let Some(decision) = Box::pin(self.decide_blocked(&active, &set, &blocks, now)).await
                {
                    return decision;
                }
            }
            let answers = self.charge_store(&active, &mut set, now).await;
            if attempts < ATTEMPTS && answers == Err(StoreFailure::Superseded) {
                attempts += 1;
                drop(set);
                match self.prepare(request, now) {
                    Ok(again) => *prepared = again,
                    Err(decision) => return *decision,
                }
                continue;
            }
            let failure = answers.as_ref().err().copied();
            let answers = self.answers_or_fallback(&active, &set, answers, now).await;
            let mut decision = self.conclude(&active, &set, &answers, failure);
            if active.has_penalties() && !decision.is_allowed() {
                Box::pin(self.strike(&active, request, &set, &mut decision, now)).await;
            }
            return decision;
        }
    }

    /// Matches a request and builds its charges. Returns the decision if no counter is needed for it: an operator blocks
    /// the request, it is at fault, or the policy forbids it.
    #[inline]
    pub(super) fn match_request<'l>(
        &self,
        active: &'l ActivePolicy,
        request: &CheckRequest<'_>,
        set: &mut ChargeSet<'l>,
        now: Timestamp,
    ) -> Option<Decision> {
        if let Some(block) = self.blocks.of(request, now) {
            return Some(Decision::blocked(Arc::clone(&active.policy), block, now));
        }
        let overrides = self.overrides.at(now);
        let MatchedRequest { matches, uncounted, permit } = &mut set.matched;
        if let Err(fault) = overrides.match_into(&active.policy, request, matches) {
            return Some(Decision::faulty(Arc::clone(&active.policy), fault));
        }
        active.take_uncounted(request, matches, &overrides, uncounted);
        *permit = self.next_permit(active, matches);
        let id = permit.unwrap_or(PermitId(0));
        // An iterator would move each charge, which is large, once more.
        for matched in &*matches {
            set.charges.push(active.charge(request, matched, &overrides, id));
        }
        set.matched.without_counters(active)
    }

    /// Charges the store, after the deferred charges of the same keys were reported to it.
    pub(super) async fn charge_store(
        &self,
        active: &ActivePolicy,
        set: &mut ChargeSet<'_>,
        now: Timestamp,
    ) -> Result<Answers, StoreFailure> {
        self.reconcile_first(active, &set.charges, now).await?;
        set.permits_reported = self.fallback.get().map_or(0, |fallback| fallback.permits_reported());
        self.store.charge(&set.charges, now).await
    }

    /// Reports the deferred charges of these keys, before the store is charged for them.
    ///
    /// # Errors
    /// When the store is unreachable, and need not be asked.
    pub(super) async fn reconcile_first(
        &self,
        active: &ActivePolicy,
        charges: &[Charge<'_>],
        now: Timestamp,
    ) -> Result<(), StoreFailure> {
        match self.fallback_if_any(active, now).filter(|context| context.fallback.has_deferred(charges)) {
            // Boxed, because this future is large and every decision that waits would reserve room for it.
            Some(context) => Box::pin(context.reconcile_first(charges)).await,
            None => Ok(()),
        }
    }

    /// Whether these keys have deferred charges that must be reported before the store is charged for them.
    #[inline]
    fn must_reconcile_first(&self, charges: &[Charge<'_>]) -> bool {
        !self.store.never_waits()
            && self.fallback.get().is_some_and(|fallback| fallback.has_deferred(charges))
    }

    /// The answers to the charges of a request: those of the store, which are also counted locally, or those of the
    /// fallback.
    pub(super) async fn answers_or_fallback(
        &self,
        active: &ActivePolicy,
        set: &ChargeSet<'_>,
        answered: Result<Answers, StoreFailure>,
        now: Timestamp,
    ) -> Answers {
        // Boxed, because these futures are large and every decision that waits would reserve room for them.
        match answered {
            Ok(answers) => {
                self.follow_store(active, set, &answers, now);
                match self.fallback_if_any(active, now).filter(|_| set.matched.permit.is_some()) {
                    Some(context) => {
                        Box::pin(async move {
                            context.within_limits(&set.asked(), answers, set.permits_reported).await
                        })
                        .await
                    }
                    None => answers,
                }
            }
            Err(failure) => {
                let context = self.fallback_or_new(active, now);
                Box::pin(async move { context.answers(&set.asked(), failure).await }).await
            }
        }
    }

    /// Counts in the fallback what the store has admitted.
    #[inline]
    pub(super) fn follow_store(
        &self,
        active: &ActivePolicy,
        set: &ChargeSet<'_>,
        answers: &[ChargeAnswer],
        now: Timestamp,
    ) {
        if !self.store.never_waits() && has_news(answers) {
            self.fallback_or_new(active, now).follow_store(&set.asked(), answers);
        }
    }

    /// The fallback at an instant, if it was needed before.
    pub(super) fn fallback_if_any<'e>(
        &'e self,
        active: &'e ActivePolicy,
        now: Timestamp,
    ) -> Option<FallbackContext<'e, S>> {
        let fallback = self.fallback.get()?;
        Some(FallbackContext { fallback, store: &self.store, active, now })
    }

    /// The fallback at an instant; created when it is first needed.
    pub(super) fn fallback_or_new<'e>(
        &'e self,
        active: &'e ActivePolicy,
        now: Timestamp,
    ) -> FallbackContext<'e, S> {
        let new = || Box::new(Fallback::new(active, node_count(&self.store), self.wall_offset(), now));
        FallbackContext { fallback: self.fallback.get_or_init(new), store: &self.store, active, now }
    }

    /// Builds the decision from the answers, which come from the fallback where the store failed.
    #[inline]
    pub(super) fn conclude(
        &self,
        active: &ActivePolicy,
        set: &ChargeSet<'_>,
        answers: &[ChargeAnswer],
        failure: Option<StoreFailure>,
    ) -> Decision {
        let mut decision = Decision::open(Arc::clone(&active.policy));
        let ChargeSet { matched: MatchedRequest { matches, uncounted, permit }, charges, .. } = set;
        let answered = matches.iter().zip(charges).zip(answers);
        decision.conclude(answered.map(|((matched, charge), answer)| Status {
            limit: matched.limit,
            quota: matched.quota,
            descriptor: matched.descriptor,
            enforcement: charge.enforcement,
            source: answer.source,
            key: charge.key,
            group: charge.group,
            cost: charge.cost,
            outcome: answer.outcome,
            charged_at: answer.charged_at,
        }));
        decision.add_uncounted(uncounted);
        if let Some(id) = permit
            && decision.is_allowed()
        {
            let took = |answer: &ChargeAnswer| match failure {
                // The store may have granted the permit, too.
                Some(StoreFailure::Unanswered) => Source::Exact,
                _ => answer.source,
            };
            let sources = answers.iter().map(took);
            decision.give(taken(active, matches, charges, sources, *id).map(Box::new));
        }
        decision
    }

    /// An id for the permits of this decision, if it takes any.
    fn next_permit(&self, active: &ActivePolicy, matches: &[Match]) -> Option<PermitId> {
        // Relaxed: the ids need only differ.
        matches
            .iter()
            .any(|matched| active.takes_permit(matched))
            .then(|| PermitId(self.permits.fetch_add(1, Ordering::Relaxed)))
    }
}

/// The permit that the charges acquired under this id; `None` if they only looked.
fn taken(
    active: &ActivePolicy,
    matches: &[Match],
    charges: &[Charge<'_>],
    sources: impl Iterator<Item = Source>,
    id: PermitId,
) -> Option<Permit> {
    let takes = |matched: &Match, charge: &Charge<'_>| charge.cost > 0 && active.takes_permit(matched);
    let held = matches.iter().zip(charges).zip(sources);
    let held = held.filter(|((matched, charge), _)| takes(matched, charge));
    let held = held.map(|((matched, charge), source)| Held::new(&active.policy, matched, charge, source));
    Permit::new(id, held.collect())
}
