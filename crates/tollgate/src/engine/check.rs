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

use super::active::{ActivePolicy, CounterKey};
use super::overrides::ActiveOverrides;
use super::{ATTEMPTS, Charges, Engine};
use crate::algorithm::concurrency::PermitId;
use crate::decision::{Decision, Held, Permit, Status};
use crate::outcome::Source;
use crate::policy::{Match, Matches};
use crate::request::CheckRequest;
use crate::store::{Answers, Charge, ChargeAnswer, Store, StoreFailure};
use crate::time::Timestamp;

/// The charges of one request, under one policy.
pub(super) struct ChargeSet<'l> {
    pub(super) matches: Matches,
    pub(super) overrides: ActiveOverrides,
    /// The charge of each match.
    pub(super) charges: Charges<'l>,
    pub(super) permit: Option<PermitId>,
    /// How many permits of the fallback the store had recorded when it was charged.
    pub(super) reported: u64,
    /// The statuses of limits that need no counter.
    pub(super) uncounted: Vec<Status>,
}

impl ChargeSet<'_> {
    /// No charges yet.
    #[inline]
    pub(super) fn new(overrides: ActiveOverrides) -> Self {
        let (matches, charges) = (Matches::new(), Charges::new());
        Self { matches, overrides, charges, permit: None, reported: 0, uncounted: Vec::new() }
    }
}

/// A request whose decision must await the store. It is matched and its keys are hashed, and nothing is charged yet.
pub struct Prepared(Box<PreparedParts>);

struct PreparedParts {
    active: Arc<ActivePolicy>,
    matches: Matches,
    overrides: ActiveOverrides,
    /// The counter of each match.
    keys: SmallVec<[CounterKey; 6]>,
    permit: Option<PermitId>,
    uncounted: Vec<Status>,
}

impl Prepared {
    /// Decides about the request, and awaits the store. `request` is the request that was prepared: it is matched again
    /// only if a newer policy takes over its counters meanwhile.
    ///
    /// It always answers: a failing store leads to a decision chosen by policy, not to an error.
    pub fn check<S: Store>(
        self,
        engine: &Engine<S>,
        request: &CheckRequest<'_>,
        now: Timestamp,
    ) -> impl Future<Output = Decision> + Send {
        // Boxed, because the future of a decision that waits is large, and most decisions never wait.
        let decided = Box::pin(engine.decide(self, request, now));
        async { decided.await.decision }
    }

    fn new(active: Arc<ActivePolicy>, set: ChargeSet<'_>) -> Self {
        let ChargeSet { matches, overrides, charges, permit, uncounted, .. } = set;
        let keys = charges.iter().map(CounterKey::from).collect();
        Self(Box::new(PreparedParts { active, matches, overrides, keys, permit, uncounted }))
    }

    /// The units that each limit would be charged; afterwards the request only looks.
    pub(super) fn take_costs(&mut self) -> SmallVec<[(u32, u64); 6]> {
        let each = self.0.matches.iter_mut();
        each.map(|matched| (matched.limit, std::mem::take(&mut matched.cost))).collect()
    }
}

impl fmt::Debug for Prepared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prepared").field("matches", &self.0.matches).finish_non_exhaustive()
    }
}

impl fmt::Display for Prepared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the store must be awaited for a decision; nothing is charged yet")
    }
}

impl std::error::Error for Prepared {}

/// A decision, and the policy and counters that it was made from.
pub(super) struct Made {
    pub(super) active: Arc<ActivePolicy>,
    pub(super) matches: Matches,
    pub(super) keys: SmallVec<[CounterKey; 6]>,
    pub(super) decision: Decision,
}

impl Made {
    /// A decision that charged no counter.
    fn uncharged(active: Arc<ActivePolicy>, decision: Decision) -> Self {
        Self { active, matches: Matches::new(), keys: SmallVec::new(), decision }
    }

    fn new(active: &Arc<ActivePolicy>, set: ChargeSet<'_>, decision: Decision) -> Self {
        let keys = set.charges.iter().map(CounterKey::from).collect();
        Self { active: Arc::clone(active), matches: set.matches, keys, decision }
    }
}

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
            let mut set = ChargeSet::new(self.overrides.at(now));
            if let Some(decision) = self.match_request(&active, request, &mut set, now) {
                return Ok(decision);
            }
            if active.has_penalties() || self.must_reconcile_first(&set.charges) {
                return self.try_prepared(Prepared::new(Arc::clone(&active), set), request, now);
            }
            let mut answers = Answers::new();
            match self.store.try_charge(&set.charges, now, &mut answers) {
                None => return Err(Prepared::new(Arc::clone(&active), set)),
                Some(Err(StoreFailure::Superseded)) if attempts < ATTEMPTS => attempts += 1,
                Some(Ok(())) => {
                    self.follow_store(&active, &set, &answers, now);
                    return Ok(self.conclude(&active, &set, &answers, None));
                }
                Some(Err(failure)) => {
                    let answers = self.fallback_answers(&active, &set, failure, now);
                    return Ok(self.conclude(&active, &set, &answers, Some(failure)));
                }
            }
        }
    }

    /// Decides about a request that takes several charges, if the store never waits.
    fn try_prepared(
        &self,
        prepared: Prepared,
        request: &CheckRequest<'_>,
        now: Timestamp,
    ) -> Result<Decision, Prepared> {
        if !self.store.never_waits() {
            return Err(prepared);
        }
        match pin!(self.decide(prepared, request, now)).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(made) => Ok(made.decision),
            // A store that never waits does not come here.
            Poll::Pending => self.prepare(request, now).map_or_else(|made| Ok(made.decision), Err),
        }
    }

    /// Matches a request with the active policy and hashes its keys. The error is a decision that no counter is needed
    /// for.
    pub(super) fn prepare(&self, request: &CheckRequest<'_>, now: Timestamp) -> Result<Prepared, Box<Made>> {
        let active = self.active.load_full();
        let mut set = ChargeSet::new(self.overrides.at(now));
        match self.match_request(&active, request, &mut set, now) {
            Some(decision) => Err(Box::new(Made::uncharged(Arc::clone(&active), decision))),
            None => Ok(Prepared::new(Arc::clone(&active), set)),
        }
    }

    /// Decides about a prepared request, and awaits the store. Also returns what the decision was made from.
    pub(super) async fn decide(
        &self,
        mut prepared: Prepared,
        request: &CheckRequest<'_>,
        now: Timestamp,
    ) -> Made {
        let now = now.decidable();
        let mut attempts = 0;
        loop {
            // One policy for the whole decision, so that a reload never splits it.
            let PreparedParts { active, matches, overrides, keys, permit, uncounted } = *prepared.0;
            let id = permit.unwrap_or(PermitId(0));
            let each = matches.iter().zip(keys);
            let charges = each.map(|(matched, key)| active.charge_key(matched, key, id)).collect();
            let mut set = ChargeSet { matches, overrides, charges, permit, reported: 0, uncounted };
            if active.has_penalties() {
                let blocks = Box::pin(self.blocks_of(&active, request, &set, now)).await;
                if !blocks.is_empty()
                    && let Some(decision) = Box::pin(self.decide_blocked(&active, &set, &blocks, now)).await
                {
                    return Made::new(&active, set, decision);
                }
            }
            let reconciled = self.reconcile_first(&active, &set.charges, now).await;
            set.reported = self.permits_reported();
            let answers = match reconciled {
                Ok(()) => self.store.charge(&set.charges, now).await,
                Err(failure) => Err(failure),
            };
            if attempts < ATTEMPTS && answers == Err(StoreFailure::Superseded) {
                attempts += 1;
                prepared = match self.prepare(request, now) {
                    Ok(prepared) => prepared,
                    Err(made) => return *made,
                };
                continue;
            }
            let failure = answers.as_ref().err().copied();
            let answers = self.answers(&active, &set, answers, now).await;
            let mut decision = self.conclude(&active, &set, &answers, failure);
            if active.has_penalties() && !decision.is_allowed() {
                Box::pin(self.strike(&active, request, &set, &mut decision, now)).await;
            }
            return Made::new(&active, set, decision);
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
        let ChargeSet { matches, overrides, charges, permit, uncounted, .. } = set;
        if let Err(fault) = overrides.match_into(&active.policy, request, matches) {
            return Some(Decision::faulty(Arc::clone(&active.policy), fault));
        }
        active.take_uncounted(request, matches, overrides, uncounted);
        *permit = self.next_permit(active, matches);
        let id = permit.unwrap_or(PermitId(0));
        charges.extend(matches.iter().map(|matched| active.charge(request, matched, overrides, id)));
        set.is_forbidden().then(|| set.forbidden(active))
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
        let ChargeSet { matches, charges, permit, uncounted, .. } = set;
        let answered = matches.iter().zip(charges).zip(answers);
        decision.conclude(answered.map(|((matched, charge), answer)| Status {
            limit: matched.limit,
            quota: matched.quota,
            descriptor: matched.descriptor,
            enforcement: charge.enforcement,
            source: answer.source,
            key_hash: charge.key.digest(),
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
