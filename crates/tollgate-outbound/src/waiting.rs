//! The path of one call from its arrival to its departure: through the queue of each bucket that holds it back, past the
//! policy, and out.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;

use tollgate::engine::{Prepared, PreparedCounter};
use tollgate::store::{Enforcement, Store};
use tollgate::{CheckRequest, Decision, LimitStatus, Quota, Ticks, Timestamp, Verdict};

use crate::background;
use crate::call::Call;
use crate::costs::Costs;
use crate::guard::{Guard, GuardedCall, OwnCounter};
use crate::keys::{BucketKey, CallIdentity};
use crate::queue::{Arrival, Front, HeldBack, LimitShape, Rank};
use crate::queues::{Step, Wait};
use crate::refusal::Refusal;
use crate::report::admits_now;
use crate::reserved::Reserved;
use crate::slots::{Charged, ChargedTo};
use crate::state::Shared;

/// How often a call that waits for a permit of a shared store asks again: no other process wakes it.
const PERMIT_POLL: Ticks = Ticks::from_millis(100);
/// How long before its slot a call reserves it in a leaky bucket of a shared store, so that the answer is there in time.
const SLOT_AHEAD: Ticks = Ticks::from_millis(100);

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

/// The counters of the policy that a call is about.
struct OwnCounters {
    to: Arc<ChargedTo>,
    /// The leaky buckets among them, and how many calls may ask for slots there at a time.
    leaky: Vec<(BucketKey, Front)>,
}

impl OwnCounters {
    fn costs(&self) -> &Arc<Costs> {
        &self.to.costs
    }

    fn front_of(&self, key: &BucketKey) -> Front {
        self.leaky.iter().find(|(leaky, _)| leaky == key).map_or(Front::ONE, |(_, front)| *front)
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
            let own = self.counters(now);
            let step = {
                let mut queues = self.shared.queues();
                let mut keys = queues.server_keys(&self.identity, now);
                keys.extend(own.to.counters.iter().cloned());
                queues.step(&keys, &self.identity.host, self.arrival.rank, own.costs(), now)
            };
            match step {
                Step::Refused(refusal) => return Err(refusal),
                Step::Wait(wait) => self.wait(wait, &own, now).await?,
                Step::Go => {
                    if self.is_in_front(&own, now)?
                        && let Some(guard) = self.attempt(&own, now).await?
                    {
                        return Ok(guard);
                    }
                }
            }
        }
    }

    /// The counters of the policy that the call is about, and what it costs there. Nothing is charged.
    fn counters(&self, now: Timestamp) -> OwnCounters {
        // A decision that needs no counter comes from `reserve`.
        let prepared = self.shared.engine.ledger().prepare(&self.request, now);
        let costs = Arc::new(costs_of(self.call, prepared.as_ref()));
        let (mut counters, mut leaky) = (Vec::new(), Vec::new());
        for counter in prepared.iter().flat_map(Prepared::counters) {
            let key = BucketKey::Limit(counter.limit.into(), counter.key_hash);
            leaky.extend(self.front_of(&counter).map(|front| (key.clone(), front)));
            counters.push(key);
        }
        OwnCounters { to: Arc::new(ChargedTo { counters, costs }), leaky }
    }

    /// How many calls may ask for slots of a counter at a time, if it is a leaky bucket. A cost that it never admits has
    /// no slot.
    fn front_of(&self, counter: &PreparedCounter<'_>) -> Option<Front> {
        let is_enforced = counter.enforcement == Enforcement::Enforced;
        match counter.quota {
            Quota::LeakyBucket(bucket) if is_enforced && counter.cost <= bucket.capacity() => {
                Some(Front::of_bucket(bucket.rate(), counter.cost, self.slot_ahead()))
            }
            _ => None,
        }
    }

    /// How long before its slot a call reserves it.
    fn slot_ahead(&self) -> Ticks {
        if self.shared.engine.store().never_waits() { Ticks::ZERO } else { SLOT_AHEAD }
    }

    /// Whether the call is in the front of a queue, if a leaky bucket counts it: few calls ask for slots at a time, and
    /// the others wait behind them.
    fn is_in_front(&mut self, own: &OwnCounters, now: Timestamp) -> Result<bool, Refusal> {
        match own.leaky.first() {
            Some((key, _)) if self.queued.is_none() => self.enter(key, own, now),
            _ => Ok(true),
        }
    }

    /// Charges the call, and sends it if the buckets of the server admit it.
    async fn attempt(&mut self, own: &OwnCounters, now: Timestamp) -> Result<Option<Guard<S>>, Refusal> {
        if own.leaky.is_empty() {
            return self.reserve(own, now).await;
        }
        if let Some(free) = Reserved::take_free(self.shared, &own.to, self.arrival.leaves_until()) {
            return self.depart(free, own).await;
        }
        if !self.is_slot_near(own, now).await? {
            return Ok(None);
        }
        self.reserve(own, self.shared.engine.now()).await
    }

    /// Whether the slot of the call is so near that it reserves it. Waits otherwise. Nothing is charged.
    async fn is_slot_near(&mut self, own: &OwnCounters, now: Timestamp) -> Result<bool, Refusal> {
        let decision = self.shared.engine.reservations().forecast(&self.request, now).await;
        match decision.verdict() {
            Verdict::Allow => Ok(true),
            Verdict::Wait(wait) => {
                let (at, ahead) = (now + wait, self.slot_ahead());
                let (key, quota) = key_of(slowest_of(&decision).as_ref());
                if at > self.arrival.leaves_until() {
                    return Err(self.too_late(&key, at, now));
                }
                if wait <= ahead {
                    return Ok(true);
                }
                let earliest = self.hold_back(&key, own, LimitShape::new(HeldBack::SlotFar, at, quota), now);
                let until = Some(at - ahead);
                self.wait(Wait { latest: key.clone(), key, until, earliest }, own, now).await?;
                Ok(false)
            }
            _ => {
                self.denied(&decision, own, now).await?;
                Ok(false)
            }
        }
    }

    /// Reserves what the call costs, and sends it.
    async fn reserve(&mut self, own: &OwnCounters, now: Timestamp) -> Result<Option<Guard<S>>, Refusal> {
        let lifetime = Ticks::ceil_from(self.shared.settings.call_max);
        let (shared, call, to) = (Arc::clone(self.shared), self.call.clone(), Arc::clone(&own.to));
        // A caller that goes away meanwhile leaves to others what the store reserves.
        let asked = background::to_its_end(async move {
            let request = call.request()?;
            let (decision, reservation) = shared.engine.reservations().reserve(&request, lifetime, now).await;
            Ok::<_, Refusal>(match reservation {
                Some(reservation) => Ok(Reserved::new(&shared, &to, Charged { decision, reservation }, now)),
                None => Err(decision),
            })
        });
        match asked.await? {
            Ok(reserved) => self.depart(reserved, own).await,
            // No limit counts it.
            Err(decision) if decision.is_allowed() => {
                Ok(self.send(&decision, own.costs(), self.shared.engine.now()))
            }
            Err(decision) => {
                self.denied(&decision, own, now).await?;
                Ok(None)
            }
        }
    }

    /// Waits for the slot that the call has reserved, and sends it. The next call reserves meanwhile.
    async fn depart(
        &mut self,
        reserved: Reserved<S>,
        own: &OwnCounters,
    ) -> Result<Option<Guard<S>>, Refusal> {
        let (now, at) = (self.shared.engine.now(), reserved.leaves_at());
        let Some(decision) = reserved.decision() else { return Ok(None) };
        if at > now {
            if at > self.arrival.leaves_until() {
                let (key, _) = key_of(slowest_of(decision).as_ref());
                return Err(self.too_late(&key, at, now));
            }
            self.queued = None;
            self.has_waited = true;
            self.shared.engine.maintenance().clock().sleep_until(at).await;
        }
        let guard = self.send(decision, own.costs(), self.shared.engine.now());
        Ok(guard.map(|guard| guard.holding(reserved.into_units())))
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
        let (call, identity) = (self.call.clone(), self.identity.clone());
        let guarded = GuardedCall { call, identity, arrival: self.arrival, number };
        Some(Guard::new(self.shared, guarded, server, own))
    }

    /// A limit of the policy denied the call: waits until it may admit it.
    async fn denied(
        &mut self,
        decision: &Decision,
        own: &OwnCounters,
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
        let earliest = self.hold_back(&key, own, LimitShape::new(HeldBack::Denied, due, quota), now);
        self.wait(Wait { latest: key.clone(), key, until: Some(until), earliest }, own, now).await
    }

    fn hold_back(&self, key: &BucketKey, own: &OwnCounters, shape: LimitShape, now: Timestamp) -> Timestamp {
        let call = (self.arrival.rank, &**own.costs());
        self.shared.queues().hold_back(key, &self.identity.host, call, shape, now)
    }

    /// Waits in the queue of a bucket until an instant, or until it is woken.
    async fn wait(&mut self, wait: Wait, own: &OwnCounters, now: Timestamp) -> Result<(), Refusal> {
        let Wait { key, until, earliest, latest } = wait;
        let deadline = self.arrival.leaves_until();
        if earliest > deadline || now >= deadline {
            return Err(self.too_late(&latest, earliest, now));
        }
        if self.queued.as_ref().is_none_or(|queued| queued.key != key) {
            self.enter(&key, own, now)?;
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

    /// Enters a queue, and leaves the one before. Returns whether the call is in its front.
    fn enter(&mut self, key: &BucketKey, own: &OwnCounters, now: Timestamp) -> Result<bool, Refusal> {
        self.queued = None;
        let (shared, rank, costs) = (&**self.shared, self.arrival.rank, Arc::clone(own.costs()));
        let queue = (key, own.front_of(key));
        let is_in_front = shared.queues().enter(queue, &self.identity.host, rank, costs, now)?;
        self.queued = Some(Queued { shared, key: key.clone(), rank });
        Ok(is_in_front)
    }

    fn too_late(&self, key: &BucketKey, until: Timestamp, now: Timestamp) -> Refusal {
        let freeze = self.shared.queues().frozen(std::slice::from_ref(key), now).map(|(_, freeze)| freeze);
        self.arrival.too_late(key, &self.identity.host, until.max(now), freeze)
    }
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
