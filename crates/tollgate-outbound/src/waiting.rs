//! The path of one call from its arrival to its departure: through the queue of each bucket that holds it back, past the
//! policy, and out.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;

use tollgate::engine::Prepared;
use tollgate::store::Store;
use tollgate::{CheckRequest, Decision, LimitStatus, Quota, Source, Ticks, Timestamp, Verdict};

use crate::background;
use crate::call::Call;
use crate::costs::Costs;
use crate::guard::{End, Guard, HeldUnits, OwnCounter, end};
use crate::keys::{BucketKey, CallIdentity};
use crate::queue::{HeldBack, LimitShape, Rank};
use crate::queues::{Step, Wait};
use crate::refusal::Refusal;
use crate::report::admits_now;
use crate::settings::Settings;
use crate::state::Shared;

/// How often a call that waits for a permit of a shared store asks again: no other process wakes it.
const PERMIT_POLL: Ticks = Ticks::from_millis(100);
/// How long before its slot of a shared leaky bucket a call leaves the queue, so that the next one reserves in time.
const SLOT_AHEAD: Ticks = Ticks::from_millis(100);

/// The arrival of a call. All its attempts share it, so that an attempt that the server refused goes first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    rank: Rank,
    at: Timestamp,
    /// How long it may wait in all.
    max_wait: Ticks,
}

impl Arrival {
    pub(crate) fn new(call: &Call, ticket: u64, settings: &Settings, now: Timestamp) -> Self {
        let max_wait = call.wait_max().unwrap_or(Ticks::ceil_from(settings.max_wait));
        let max_wait = call.deadline_at().map_or(max_wait, |deadline| max_wait.min(deadline.since(now)));
        Self { rank: Rank { at: now + call.urgency().handicap(), ticket }, at: now, max_wait }
    }

    /// The arrival of a call that leaves at once or not at all, and after every call that waits.
    pub(crate) const fn behind_all(ticket: u64, now: Timestamp) -> Self {
        Self { rank: Rank { at: Timestamp::MAX, ticket }, at: now, max_wait: Ticks::ZERO }
    }

    /// The last instant at which the call may leave.
    pub(crate) fn leaves_until(&self) -> Timestamp {
        self.at + self.max_wait
    }
}

/// A call that waits for a bucket. Dropping it leaves the queue.
struct Queued<'o, S> {
    shared: &'o Shared<S>,
    key: BucketKey,
    rank: Rank,
}

impl<S> Drop for Queued<'_, S> {
    fn drop(&mut self) {
        self.shared.queues().leave(&self.key, self.rank);
    }
}

/// A call on its way through the waiting queues.
pub(crate) struct Waiting<'o, 'c, S> {
    shared: &'o Arc<Shared<S>>,
    call: &'c Call,
    request: CheckRequest<'c>,
    identity: CallIdentity,
    arrival: Arrival,
    queued: Option<Queued<'o, S>>,
    has_waited: bool,
}

impl<'o, 'c, S: Store + Send + Sync + 'static> Waiting<'o, 'c, S> {
    pub(crate) const fn new(
        shared: &'o Arc<Shared<S>>,
        call: &'c Call,
        request: CheckRequest<'c>,
        identity: CallIdentity,
        arrival: Arrival,
    ) -> Self {
        Self { shared, call, request, identity, arrival, queued: None, has_waited: false }
    }

    pub(crate) async fn run(mut self) -> Result<Guard<S>, Refusal> {
        loop {
            let now = self.shared.engine.now();
            let (counters, costs) = self.counters(now);
            let step = {
                let mut queues = self.shared.queues();
                let mut keys = queues.server_keys(&self.identity, now);
                keys.extend(counters);
                queues.step(&keys, &self.identity.host, self.arrival.rank, &costs, now)
            };
            match step {
                Step::Refused(refusal) => return Err(refusal),
                Step::Wait(wait) => self.wait(wait, &costs, now).await?,
                Step::Go => {
                    if let Some(guard) = self.attempt(&costs, now).await? {
                        return Ok(guard);
                    }
                }
            }
        }
    }

    /// The counters of the policy that the call is about, and what it costs there. Nothing is charged.
    fn counters(&self, now: Timestamp) -> (Vec<BucketKey>, Arc<Costs>) {
        // A decision that needs no counter comes from `reserve`.
        let prepared = self.shared.engine.ledger().prepare(&self.request, now);
        let counters = prepared.iter().flat_map(Prepared::counters);
        let keys = counters.map(|counter| BucketKey::Limit(counter.limit.into(), counter.key_hash));
        (keys.collect(), Arc::new(costs_of(self.call, prepared.as_ref())))
    }

    /// Charges the call, and sends it if the buckets of the server admit it.
    async fn attempt(&mut self, costs: &Arc<Costs>, now: Timestamp) -> Result<Option<Guard<S>>, Refusal> {
        let shared = self.shared;
        let lifetime = Ticks::ceil_from(shared.settings.call_max);
        let reservations = shared.engine.reservations();
        let (decision, reservation) = reservations.reserve(&self.request, lifetime, now).await;
        let Some(reservation) = reservation else {
            if decision.is_allowed() {
                return Ok(self.send(&decision, costs, shared.engine.now())); // No limit counts it.
            }
            self.denied(&decision, costs, now).await?;
            return Ok(None);
        };
        let mut reserved = Reserved { shared, units: Some(HeldUnits::new(shared, reservation)) };
        if let Verdict::Wait(wait) = decision.verdict() {
            let slot = Slot { counter: slowest_of(&decision), at: now + wait };
            // Neither other processes nor other keys have reserved behind it.
            let is_exact = slot.counter.as_ref().is_some_and(|status| status.source == Source::Exact);
            if is_exact && shared.engine.store().never_waits() {
                reserved.give_back().await;
                self.wait_for_slot(&slot, HeldBack::Unpaid, costs, now).await?;
                return Ok(None);
            }
            self.wait_in_slot(&slot).await?;
        }
        let guard = self.send(&decision, costs, shared.engine.now());
        Ok(guard.map(|guard| guard.holding(reserved.units.take())))
    }

    /// Waits for a slot of a leaky bucket in the queue of this process. Until then another call may take the slot.
    async fn wait_for_slot(
        &mut self,
        slot: &Slot<'_>,
        how: HeldBack,
        costs: &Arc<Costs>,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        let (key, quota) = key_of(slot.counter.as_ref());
        let earliest = self.hold_back(&key, costs, LimitShape::new(how, slot.at, quota), now);
        let until = match how {
            HeldBack::Unpaid => slot.at,
            HeldBack::InSlot => slot.at - SLOT_AHEAD,
        };
        self.wait(Wait { latest: key.clone(), key, until: Some(until), earliest }, costs, now).await
    }

    /// Keeps its slot of a leaky bucket on a shared store, where it could not be given back: other processes have
    /// reserved the slots behind it. It stays in the queue until its slot is near, so that few calls have slots.
    async fn wait_in_slot(&mut self, slot: &Slot<'_>) -> Result<(), Refusal> {
        // The counter has counted it already.
        let costs = Arc::new(Costs::NONE);
        self.queued = None;
        loop {
            let now = self.shared.engine.now();
            if now + SLOT_AHEAD >= slot.at {
                break;
            }
            self.wait_for_slot(slot, HeldBack::InSlot, &costs, now).await?;
        }
        if slot.at > self.arrival.leaves_until() {
            let (key, _) = key_of(slot.counter.as_ref());
            return Err(self.too_late(&key, slot.at, self.shared.engine.now()));
        }
        self.queued = None;
        self.has_waited = true;
        self.shared.engine.maintenance().clock().sleep_until(slot.at).await;
        Ok(())
    }

    /// Sends the call, unless the server's buckets have filled up meanwhile.
    fn send(&mut self, decision: &Decision, costs: &Arc<Costs>, now: Timestamp) -> Option<Guard<S>> {
        let (number, server) = self.shared.queues().send(&self.identity, costs, now)?;
        self.queued = None;
        let waited = now.since(self.arrival.at);
        if self.has_waited {
            let totals = &self.shared.totals;
            totals.waited.fetch_add(1, Ordering::Relaxed);
            totals.waited_micros.fetch_add(waited.as_micros(), Ordering::Relaxed);
        }
        let own = decision.limits().filter(|status| status.source.has_numbers());
        let own = own.map(|status| OwnCounter {
            key: BucketKey::Limit(status.limit.name().into(), status.key_hash),
            limit: status.limit.name().to_owned(),
            remaining: admits_now(status.quota, &status.outcome),
            is_concurrency: matches!(status.quota, Some(Quota::Concurrency(_))),
        });
        let own = own.collect();
        Some(Guard::new(self.shared, self.call.clone(), self.identity.clone(), server, own, number))
    }

    /// A limit of the policy denied the call: waits until it may admit it.
    async fn denied(
        &mut self,
        decision: &Decision,
        costs: &Arc<Costs>,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        if let Some(refusal) = refusal_for_ever(decision) {
            return Err(refusal);
        }
        let due = now + decision.retry_after().unwrap_or(Ticks::ONE);
        let (key, quota) = key_of(decision.cause().as_ref());
        let is_permit = matches!(quota, Some(Quota::Concurrency(_)));
        let until = if is_permit && !self.shared.engine.store().never_waits() {
            due.min(now + PERMIT_POLL)
        } else {
            due
        };
        // A permit may return at any moment.
        let due = if is_permit { now } else { due };
        let earliest = self.hold_back(&key, costs, LimitShape::new(HeldBack::Unpaid, due, quota), now);
        self.wait(Wait { latest: key.clone(), key, until: Some(until), earliest }, costs, now).await
    }

    fn hold_back(&self, key: &BucketKey, costs: &Costs, shape: LimitShape, now: Timestamp) -> Timestamp {
        let call = (self.arrival.rank, costs);
        self.shared.queues().hold_back(key, &self.identity.host, call, shape, now)
    }

    /// Waits in the queue of a bucket until an instant, or until it is woken.
    async fn wait(&mut self, wait: Wait, costs: &Arc<Costs>, now: Timestamp) -> Result<(), Refusal> {
        let Wait { key, until, earliest, latest } = wait;
        let deadline = self.arrival.leaves_until();
        if earliest > deadline || now >= deadline {
            return Err(self.too_late(&latest, earliest, now));
        }
        if self.queued.as_ref().is_none_or(|queued| queued.key != key) {
            self.queued = None;
            let shared = &**self.shared;
            shared.queues().enter(&key, &self.identity.host, self.arrival.rank, Arc::clone(costs), now)?;
            self.queued = Some(Queued { shared, key: key.clone(), rank: self.arrival.rank });
        }
        self.has_waited = true;
        let until = until.map_or(deadline, |until| until.min(deadline));
        let mut sleep = pin!(self.shared.engine.maintenance().clock().sleep_until(until));
        let rank = self.arrival.rank;
        poll_fn(|context| {
            if self.shared.queues().poll_woken(&key, rank, context.waker()) {
                return Poll::Ready(());
            }
            sleep.as_mut().poll(context)
        })
        .await;
        Ok(())
    }

    fn too_late(&self, key: &BucketKey, until: Timestamp, now: Timestamp) -> Refusal {
        let until = until.max(now);
        Refusal::TooLate {
            bucket: key.name(&self.identity.host).to_string(),
            basis: key.basis(),
            wait: until.since(self.arrival.at),
            max_wait: self.arrival.max_wait,
            until,
        }
    }
}

/// The units that a call has reserved before it leaves. Dropping it refunds the reservation. A store that does not answer keeps the
/// units charged, which errs on the safe side.
struct Reserved<'o, S: Store + Send + Sync + 'static> {
    shared: &'o Arc<Shared<S>>,
    units: Option<HeldUnits>,
}

impl<S: Store + Send + Sync + 'static> Reserved<'_, S> {
    /// Gives it back at once, on a store of this process.
    async fn give_back(&mut self) {
        let Some(mut units) = self.units.take() else { return };
        let engine = &self.shared.engine;
        // From its queue a slot can be given back although other calls have reserved the slots behind it.
        let queued = engine.reservations().enqueue(units.reservation(), engine.maintenance().clock());
        end(Arc::clone(self.shared), units, End::NotSent).await;
        drop(queued);
    }
}

impl<S: Store + Send + Sync + 'static> Drop for Reserved<'_, S> {
    fn drop(&mut self) {
        if let Some(units) = self.units.take() {
            background::run(end(Arc::clone(self.shared), units, End::NotSent));
        }
    }
}

/// A slot of a leaky bucket.
struct Slot<'d> {
    /// The counter that makes the call wait longest.
    counter: Option<LimitStatus<'d>>,
    at: Timestamp,
}

/// The limit that makes a call wait longest.
fn slowest_of(decision: &Decision) -> Option<LimitStatus<'_>> {
    decision.limits().max_by_key(|status| match status.outcome.verdict {
        Verdict::Wait(wait) => wait,
        _ => Ticks::ZERO,
    })
}

/// The bucket of a counter, and its quota. Without a counter an operator has denied the call.
fn key_of<'d>(counter: Option<&LimitStatus<'d>>) -> (BucketKey, Option<&'d Quota>) {
    match counter {
        Some(status) => (BucketKey::Limit(status.limit.name().into(), status.key_hash), status.quota),
        None => (BucketKey::Limit("operator".into(), 0), None),
    }
}

/// The cost of a call in each limit that counts it.
pub(crate) fn costs_of(call: &Call, prepared: Option<&Prepared>) -> Costs {
    let counters = prepared.into_iter().flat_map(Prepared::counters);
    let by_limit = counters.map(|counter| (counter.limit.into(), counter.cost));
    Costs::of_call(call.units(), by_limit.collect())
}

/// The refusal of a call that no wait lets pass.
pub(crate) fn refusal_for_ever(decision: &Decision) -> Option<Refusal> {
    let bucket = || decision.cause_name().unwrap_or("the policy").to_owned();
    match decision.verdict() {
        Verdict::Never => {
            let capacity = decision.cause().map_or(0, |cause| cause.outcome.limit);
            Some(Refusal::Never { bucket: bucket(), capacity })
        }
        Verdict::Forbidden => Some(Refusal::Forbidden { bucket: bucket() }),
        Verdict::Allow | Verdict::Wait(_) | Verdict::Deny { .. } => None,
    }
}
