//! The engine: a policy, a store, and the path of a decision between them.

use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::slice;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use arc_swap::ArcSwap;
use smallvec::SmallVec;

use crate::algorithm::Charged;
use crate::algorithm::concurrency::PermitId;
use crate::decision::{Decision, Status};
use crate::key::{Fingerprint, Secret};
use crate::memory::{CAPACITY_BYTES_DEFAULT, MemoryStore, Usage};
use crate::outcome::Source;
use crate::policy::{Fault, Match, Matches, Mode, Policy};
use crate::request::CheckRequest;
use crate::store::{Answer, Answers, Charge, Family, Stance, Store, StoreFailure};
use crate::time::{Timestamp, WallOffset};

mod live;
mod swap;
mod views;
mod without_store;
mod reset_times;
mod hold;
mod permit;
mod line;
mod correct;
mod reset;
mod foresee;
mod debit;
mod sole;
mod tally;
mod snapshot;
mod operate;
mod uncounted;
mod penalty;
mod failures;
mod ruling;
mod block;
mod explain;

pub use block::{BLOCK_ATTRIBUTES_MAX, BLOCKS_MAX, BlockError};
pub use explain::{Explained, Explanation, LIMITS_EXPLAINED_MAX, State};
pub use hold::{CommitError, Reservation, Settled};
pub use line::Turn;
pub use live::{SwapError, SwapReport};
pub use reset::Forgotten;
pub use ruling::{RULINGS_MAX, Ruled, Ruling, RulingError, Scope};
#[cfg(feature = "fuzzing")]
pub use snapshot::sealed;
pub use snapshot::{
    RestoreError, RestoreReport, SNAPSHOT_PART_BYTES_MAX, SNAPSHOT_VERSION, Snapshot, SnapshotError,
    SnapshotReport,
};
pub use tally::{Counted, Tally};
pub use without_store::{DEBTS_MAX, Replayed, StandIn};

use block::Blocks;
use live::Live;
use reset_times::ResetTimes;
use ruling::{Bench, InForce};
use without_store::Standby;

/// How often a decision reloads the active policy because a newer one overtook it.
const ATTEMPTS: usize = 4;

type Charges<'a> = SmallVec<[Charge<'a>; 6]>;

/// Decides about requests by a policy.
///
/// ```
/// use tollgate::{CheckRequest, Clock, Engine, Policy};
/// let (policy, _) = Policy::compile("policy.yaml", b"limits: [{name: per-key, by: [api_key], rate: 2/s}]")?;
/// let clock = Clock::precise();
/// let engine = Engine::new(policy, clock.now());
/// let request = CheckRequest::new().with("api_key", "k-42")?;
/// assert!(engine.check_now(&request, clock.now()).is_allowed());
/// assert!(engine.check_now(&request, clock.now()).is_allowed());
/// let denied = engine.check_now(&request, clock.now());
/// assert_eq!(denied.cause().unwrap().limit.name(), "per-key");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Engine<S = MemoryStore> {
    store: S,
    live: ArcSwap<Live>,
    /// Locked while a policy is swapped in, so that two swaps do not build on the same predecessor.
    swapping: Mutex<()>,
    permits: AtomicU64,
    /// The fallback for a store that can be unreachable.
    standby: OnceLock<Box<Standby>>,
    /// The operator's overrides of the policy.
    bench: Bench,
    blocks: Blocks,
    reset_times: ResetTimes,
    /// How often the attributes that decisions depend on may have changed.
    changes: AtomicU64,
    /// How far the wall clock is ahead, in microseconds, by the last call of `follow_wall`. Relaxed: it guards no other
    /// memory.
    wall: AtomicI64,
}

impl Engine<MemoryStore> {
    /// An engine on memory, for decisions from `now` on.
    #[must_use]
    pub fn new(policy: Policy, now: Timestamp) -> Self {
        Self::with_store(policy, MemoryStore::new(CAPACITY_BYTES_DEFAULT, now.decidable()), Secret::random())
    }

    /// Decides about one request without waiting. Memory never waits, so no async runtime is needed.
    #[must_use]
    #[inline]
    pub fn check_now(&self, request: &CheckRequest<'_>, now: Timestamp) -> Decision {
        self.check_views_now(slice::from_ref(request), now)
    }

    /// As [`Engine::check_now`], for a request with several descriptors; see [`Engine::check_views`].
    #[must_use]
    #[inline]
    pub fn check_views_now(&self, views: &[CheckRequest<'_>], now: Timestamp) -> Decision {
        self.check_at_once(views, now).unwrap_or_else(|| unreachable!("memory answers at once"))
    }

    /// Decides about many requests, in order.
    #[must_use]
    pub fn check_all_now(&self, requests: &[CheckRequest<'_>], now: Timestamp) -> Vec<Decision> {
        requests.iter().map(|request| self.check_now(request, now)).collect()
    }

    /// What the memory store holds; counting walks all of it.
    #[must_use]
    pub fn usage(&self, now: Timestamp) -> Usage {
        self.store.usage(now.decidable())
    }
}

/// A decision, and the active policy and overrides that it was made from.
struct Made {
    live: Arc<Live>,
    matches: Matches,
    rulings: InForce,
    decision: Decision,
}

impl Made {
    /// A decision for which no limit was asked.
    fn unasked(live: &Arc<Live>, decision: Decision, rulings: InForce) -> Self {
        Self { live: Arc::clone(live), matches: Matches::new(), rulings, decision }
    }
}

/// What a request asks of a store, under one policy.
struct Question<'l> {
    matches: Matches,
    rulings: InForce,
    charges: Charges<'l>,
    permit: Option<PermitId>,
    /// How many permits of the fallback the store had recorded when it was asked.
    reported: u64,
    /// The statuses of limits that need no counter.
    uncounted: Vec<Status>,
}

impl Question<'_> {
    /// An empty question.
    #[inline]
    fn of(rulings: InForce) -> Self {
        let (matches, charges) = (Matches::new(), Charges::new());
        Self { matches, rulings, charges, permit: None, reported: 0, uncounted: Vec::new() }
    }
}

impl<S: Store> Engine<S> {
    /// An engine on a store of the caller's choice.
    pub fn with_store(policy: Policy, store: S, secret: Secret) -> Self {
        Self::with_shared(Arc::new(policy), store, secret)
    }

    fn with_shared(policy: Arc<Policy>, store: S, secret: Secret) -> Self {
        Self::assemble(Live::first(policy, Arc::new(secret), store.is_grouped()), store, first_permit())
    }

    fn assemble(live: Live, store: S, permits: u64) -> Self {
        store.prepare(live.families());
        Self {
            store,
            live: ArcSwap::from_pointee(live),
            swapping: Mutex::new(()),
            permits: AtomicU64::new(permits),
            standby: OnceLock::new(),
            bench: Bench::default(),
            blocks: Blocks::default(),
            reset_times: ResetTimes::default(),
            changes: AtomicU64::new(0),
            wall: AtomicI64::new(0),
        }
    }

    /// Decides about one request, with one descriptor or several, if the store can answer without waiting. Memory
    /// always can, and leases mostly can. `None`: nothing was charged, and [`Engine::check`] or [`Engine::check_views`]
    /// decides. It is the same decision with fewer steps, for callers that make millions of them.
    #[must_use]
    #[inline]
    pub fn check_at_once(&self, views: &[CheckRequest<'_>], now: Timestamp) -> Option<Decision> {
        let mut decided = None;
        self.decide_at_once(views, now, &mut decided);
        decided
    }

    /// As [`Engine::check_at_once`], but writes to `decided`, which must be empty: a decision is large, and returning
    /// it through several functions would copy it each time.
    pub fn decide_at_once(&self, views: &[CheckRequest<'_>], now: Timestamp, decided: &mut Option<Decision>) {
        if !self.store.may_answer_at_once() {
            return;
        }
        let now = now.decidable();
        for attempt in 0.. {
            let live = self.live.load();
            // A denial may have to be counted, so a store that would make it wait is not asked here.
            if (!live.is_leased || live.has_penalties()) && !self.store.answers_at_once() {
                return;
            }
            if let Some(block) = self.blocks.of(views, now) {
                *decided = Some(Decision::blocked(Arc::clone(&live.policy), block, now));
                return;
            }
            let rulings = self.bench.at(now);
            if self.decide_sole(&live, views, &rulings, now, decided) {
                return;
            }
            let mut question = Question::of(rulings);
            if let Err(fault) = self.ask_into(&live, views, &mut question) {
                *decided = Some(Decision::faulty(Arc::clone(&live.policy), fault));
                return;
            }
            if question.is_forbidden() {
                *decided = Some(question.forbidden(&live));
                return;
            }
            if live.has_penalties()
                && let Some(blocks) = penalty::at_once(self.blocks_of(&live, views, &question, now))
                && !blocks.is_empty()
                && let Some(Some(decision)) =
                    penalty::at_once(self.decide_blocked(&live, &question, &blocks, now))
            {
                *decided = Some(decision);
                return;
            }
            if self.must_pay_first(&question.charges) {
                return;
            }
            let mut answers = Answers::new();
            let Some(answered) = self.store.charge_at_once(&question.charges, now, &mut answers) else {
                return;
            };
            if attempt < ATTEMPTS && answered == Err(StoreFailure::Superseded) {
                continue;
            }
            let decision = decided.insert(Decision::open(Arc::clone(&live.policy)));
            match answered {
                Ok(()) => {
                    self.follow_store(&live, &question, &answers, now);
                    self.conclude_into(&live, &question, &answers, None, decision);
                }
                Err(failure) => {
                    let answers = self.answers_at_once(&live, &question, failure, now);
                    self.conclude_into(&live, &question, &answers, Some(failure), decision);
                }
            }
            if live.has_penalties() && !decision.is_allowed() {
                penalty::at_once(self.strike(&live, views, &question, decision, now));
            }
            return;
        }
    }

    /// Decides about one request. It always answers: a failing store leads to a decision chosen by policy, not to an
    /// error.
    pub fn check(&self, request: &CheckRequest<'_>, now: Timestamp) -> impl Future<Output = Decision> + Send {
        self.check_views(slice::from_ref(request), now)
    }

    /// The path of a decision. Returns also what it was made from.
    async fn decide(&self, views: &[CheckRequest<'_>], now: Timestamp) -> Made {
        let now = now.decidable();
        for attempt in 0.. {
            let live = self.live.load_full(); // Taken once, so a reload never splits a decision.
            if let Some(block) = self.blocks.of(views, now) {
                let decision = Decision::blocked(Arc::clone(&live.policy), block, now);
                return Made::unasked(&live, decision, self.bench.at(now));
            }
            let mut question = match self.ask(&live, views, self.bench.at(now)) {
                Ok(question) => question,
                Err(fault) => {
                    let decision = Decision::faulty(Arc::clone(&live.policy), fault);
                    return Made::unasked(&live, decision, self.bench.at(now));
                }
            };
            if question.is_forbidden() {
                return Made::unasked(&live, question.forbidden(&live), question.rulings);
            }
            if live.has_penalties() {
                let blocks = Box::pin(self.blocks_of(&live, views, &question, now)).await;
                if !blocks.is_empty()
                    && let Some(decision) =
                        Box::pin(self.decide_blocked(&live, &question, &blocks, now)).await
                {
                    let Question { matches, rulings, .. } = question;
                    return Made { live: Arc::clone(&live), matches, rulings, decision };
                }
            }
            let paid = self.pay_first(&live, &question.charges, now).await;
            question.reported = self.permits_reported();
            let answers = match paid {
                Ok(()) => self.store.charge(&question.charges, now).await,
                Err(failure) => Err(failure),
            };
            if attempt < ATTEMPTS && answers == Err(StoreFailure::Superseded) {
                continue;
            }
            let failure = answers.as_ref().err().copied();
            let answers = self.answers(&live, &question, answers, now).await;
            let mut decision = self.conclude(&live, &question, &answers, failure);
            if live.has_penalties() && !decision.is_allowed() {
                Box::pin(self.strike(&live, views, &question, &mut decision, now)).await;
            }
            let Question { matches, rulings, .. } = question;
            return Made { live: Arc::clone(&live), matches, rulings, decision };
        }
        unreachable!("the last attempt concludes")
    }

    /// Matches a request and builds its charges.
    #[inline]
    fn ask<'l>(
        &self,
        live: &'l Live,
        views: &[CheckRequest<'_>],
        rulings: InForce,
    ) -> Result<Question<'l>, Fault> {
        let mut question = Question::of(rulings);
        self.ask_into(live, views, &mut question)?;
        Ok(question)
    }

    /// As `ask`, but writes to a question of the caller: a question is large, and returning it through several
    /// functions would copy it each time.
    #[inline]
    fn ask_into<'l>(
        &self,
        live: &'l Live,
        views: &[CheckRequest<'_>],
        question: &mut Question<'l>,
    ) -> Result<(), Fault> {
        let Question { matches, rulings, charges, permit, uncounted, .. } = question;
        rulings.match_into(&live.policy, views, matches)?;
        live.take_uncounted(views, matches, rulings, uncounted);
        *permit = self.next_permit(live, matches);
        let id = permit.unwrap_or(PermitId(0));
        charges.extend(matches.iter().map(|matched| live.charge(views, matched, rulings, id)));
        Ok(())
    }

    /// Builds the decision from the answers, which come from the fallback where the store failed.
    #[inline]
    fn conclude(
        &self,
        live: &Live,
        question: &Question<'_>,
        answers: &[Answer],
        failure: Option<StoreFailure>,
    ) -> Decision {
        let mut decision = Decision::open(Arc::clone(&live.policy));
        self.conclude_into(live, question, answers, failure, &mut decision);
        decision
    }

    #[inline]
    fn conclude_into(
        &self,
        live: &Live,
        question: &Question<'_>,
        answers: &[Answer],
        failure: Option<StoreFailure>,
        decision: &mut Decision,
    ) {
        let Question { matches, charges, permit, uncounted, .. } = question;
        combine(matches, charges, answers, decision);
        decision.add_uncounted(uncounted);
        if let Some(id) = permit
            && decision.is_allowed()
        {
            let took = |answer: &Answer| match failure {
                // The store may have granted the permit, too.
                Some(StoreFailure::Unanswered) => Source::Exact,
                _ => answer.source,
            };
            let sources = answers.iter().map(took);
            decision.give(permit::taken(live, matches, charges, sources, *id).map(Box::new));
        }
    }

    /// An id for the permits of this decision, if it takes any.
    fn next_permit(&self, live: &Live, matches: &[Match]) -> Option<PermitId> {
        // Relaxed: the ids need only differ.
        matches
            .iter()
            .any(|matched| live.takes_permit(matched))
            .then(|| PermitId(self.permits.fetch_add(1, Ordering::Relaxed)))
    }

    /// The decision that the request would get, without charging anything.
    pub async fn peek(&self, request: &CheckRequest<'_>, now: Timestamp) -> Decision {
        self.check(&request.clone().looking(), now).await
    }

    /// Whether decisions depend on an attribute of this name. A program that reads requests can skip attributes that
    /// are not used.
    #[must_use]
    pub fn uses(&self, attribute: &str) -> bool {
        self.blocks.uses(attribute) || self.live.load().policy.uses(attribute)
    }

    /// A number that changes whenever [`Engine::uses`] may return something else than before.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Called after the change. Release: a thread that sees the new number sees the change.
    fn changed(&self) {
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// The active policy.
    #[must_use]
    pub fn policy(&self) -> Arc<Policy> {
        Arc::clone(&self.live.load().policy)
    }

    /// The same engine on another type of store, for a program whose stores are of one type. The new store must keep
    /// the counters.
    #[must_use]
    pub fn map_store<T: Store>(self, map: impl FnOnce(S) -> T) -> Engine<T> {
        let Self { store, live, swapping, permits, standby, bench, blocks, reset_times, changes, wall } =
            self;
        Engine {
            store: map(store),
            live,
            swapping,
            permits,
            standby,
            bench,
            blocks,
            reset_times,
            changes,
            wall,
        }
    }

    /// Applies a new setting of the wall clock, so that calendar windows and epoch windows begin and end by it. The
    /// owner of the clock calls this about once a second with [`Clock::wall_offset`](crate::Clock::wall_offset), or for
    /// each request: without a change it is one comparison. Returns whether anything changed.
    ///
    /// A clock step opens no window early: what was counted goes on to count in the window in which the clock lands,
    /// and a window that the clock was set back out of goes on.
    pub fn follow_wall(&self, wall: WallOffset, now: Timestamp) -> bool {
        if self.wall() == wall {
            return false;
        }
        let now = now.decidable();
        self.wall.store(wall.as_micros(), Ordering::Relaxed);
        self.store.follow_wall(wall, now);
        self.blocks.follow_wall(wall);
        if let Some(standby) = self.standby.get() {
            standby.local.follow_wall(wall, now);
        }
        true
    }

    /// How far the wall clock is ahead of the decisions' clock, by the last call of [`Engine::follow_wall`].
    #[must_use]
    pub fn wall(&self) -> WallOffset {
        WallOffset::from_micros(self.wall.load(Ordering::Relaxed))
    }

    /// The store.
    #[must_use]
    pub const fn store(&self) -> &S {
        &self.store
    }
}

impl Live {
    /// Keeps only the limits with these names, or all if there are none.
    fn keep_named(&self, matches: &mut Matches, names: &[&str]) {
        let name = |matched: &Match| self.policy.limits()[matched.limit as usize].name();
        matches.retain(|matched| names.is_empty() || names.contains(&name(matched)));
    }

    /// The charges of the matched limits, in the policy's order.
    fn charges<'l>(
        &'l self,
        views: &[CheckRequest<'_>],
        matches: &[Match],
        rulings: &InForce,
        permit: PermitId,
    ) -> Charges<'l> {
        let mut charges = Charges::new();
        charges.extend(matches.iter().map(|matched| self.charge(views, matched, rulings, permit)));
        charges
    }

    /// The counter of one matched limit, and whether the limit takes part in the verdict.
    #[inline]
    fn counter(
        &self,
        request: &CheckRequest<'_>,
        matched: &Match,
        rulings: &InForce,
    ) -> (Stance, &Family, Fingerprint) {
        let limit = &self.policy.limits()[matched.limit as usize];
        let counters = &self.counters[matched.limit as usize];
        let key = counters.key(&counters.enforced, &self.secret, request, matched);
        let (mode, percent) = rulings.footing(limit);
        if mode == Mode::Shadow || (percent < 100 && key.digest() % 100 >= u64::from(percent)) {
            let key = counters.key(&counters.shadow, &self.secret, request, matched);
            return (Stance::Shadow, &counters.shadow, key);
        }
        (Stance::Enforced, &counters.enforced, key)
    }

    /// The charge of one matched limit, which has a counter.
    #[inline]
    fn charge<'l>(
        &'l self,
        views: &[CheckRequest<'_>],
        matched: &Match,
        rulings: &InForce,
        permit: PermitId,
    ) -> Charge<'l> {
        let request = &views[usize::from(matched.view)];
        let limit = &self.policy.limits()[matched.limit as usize];
        let (stance, family, key) = self.counter(request, matched, rulings);
        let number = self.counters[matched.limit as usize].numbers[matched.quota.0 as usize];
        let quota = &limit.quotas()[matched.quota.0 as usize];
        Charge {
            key,
            family,
            number,
            quota,
            cost: matched.cost,
            stance,
            permit,
            group: self.group_of(request, matched, &self.counters[matched.limit as usize]),
            lease: limit.lease(),
            charged: Charged::UNKNOWN,
        }
    }
}

/// The first id for permits. Engines that share a store must use different ids, so it is random.
fn first_permit() -> u64 {
    RandomState::new().hash_one(0) >> 3
}

/// Fills in the outcome of each limit.
#[inline]
fn combine(matches: &[Match], charges: &[Charge<'_>], answers: &[Answer], decision: &mut Decision) {
    let answered = matches.iter().zip(charges).zip(answers);
    decision.conclude(answered.map(|((matched, charge), answer)| Status {
        limit: matched.limit,
        quota: matched.quota,
        view: matched.view,
        stance: charge.stance,
        source: answer.source,
        key_hash: charge.key.digest(),
        outcome: answer.outcome,
        charged_at: answer.charged_at,
    }));
}
