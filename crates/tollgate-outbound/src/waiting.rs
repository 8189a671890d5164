//! The path of one call from its arrival to its departure: through the queue of each bucket that holds it back, past the
//! policy, and out.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;

use tollgate::store::Store;
use tollgate::{CheckRequest, Decision, Quota, Reservation, Ticks, Timestamp, Verdict};

use crate::background;
use crate::call::Call;
use crate::guard::{Guard, OwnCounter};
use crate::learned::Costs;
use crate::queues::{BucketKey, CallIdentity, LimitShape, Rank, Step};
use crate::refusal::{Basis, Refusal};
use crate::settings::Settings;
use crate::state::Shared;

/// How often a call that waits for a permit of a shared store asks again: no other process wakes it.
const PERMIT_POLL: Ticks = Ticks::from_millis(100);

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
            let server = self.shared.queues().server_keys(&self.identity);
            let mut keys = server.clone();
            keys.extend(self.counters(now));
            let costs = Costs { stated: self.call.units(), by_limit: Vec::new() };
            let host = Arc::clone(&self.identity.host);
            let step = self.shared.queues().step(&keys, &host, self.arrival.rank, &costs, now);
            match step {
                Step::Refused(refusal) => return Err(refusal),
                Step::Wait { key, until, earliest, basis } => {
                    self.wait(key, until, earliest, basis, now).await?;
                }
                Step::Go => {
                    if let Some(guard) = self.attempt(server, now).await? {
                        return Ok(guard);
                    }
                }
            }
        }
    }

    /// The counters of the policy that the call is about. Nothing is charged.
    fn counters(&self, now: Timestamp) -> Vec<BucketKey> {
        match self.shared.engine.try_check(&self.request.clone().looking(), now) {
            Ok(decision) => limit_keys(&decision),
            Err(prepared) => {
                prepared.counters().map(|(name, key)| BucketKey::Limit(name.into(), key)).collect()
            }
        }
    }

    /// Charges the call, and sends it if the buckets of the server admit it.
    async fn attempt(&mut self, server: Vec<BucketKey>, now: Timestamp) -> Result<Option<Guard<S>>, Refusal> {
        let shared = self.shared;
        let lifetime = Ticks::ceil_from(shared.settings.call_max);
        let reservations = shared.engine.reservations();
        let (decision, reservation) = reservations.reserve(&self.request, lifetime, now).await;
        let Some(reservation) = reservation else {
            if decision.is_allowed() {
                return Ok(self.send(&decision, server, shared.engine.now())); // No limit counts it.
            }
            self.denied(&decision, now).await?;
            return Ok(None);
        };
        let mut reserved = Reserved { shared, reservation: Some(reservation) };
        if let Verdict::Wait(wait) = decision.verdict() {
            let at = now + wait;
            if at > self.arrival.leaves_until() {
                return Err(self.too_late(slowest_of(&decision), Basis::Policy, at, now));
            }
            self.has_waited = true;
            shared.engine.maintenance().clock().sleep_until(at).await;
        }
        let guard = self.send(&decision, server, shared.engine.now());
        Ok(guard.map(|guard| guard.holding(reserved.reservation.take())))
    }

    /// Sends the call, unless the server's buckets have filled up meanwhile.
    fn send(&mut self, decision: &Decision, server: Vec<BucketKey>, now: Timestamp) -> Option<Guard<S>> {
        let costs = Arc::new(costs_of(self.call, decision));
        let number = self.shared.queues().send(&server, &costs, now)?;
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
            remaining: status.outcome.remaining,
            is_concurrency: matches!(status.quota, Some(Quota::Concurrency(_))),
        });
        let own = own.collect();
        Some(Guard::new(self.shared, self.call.clone(), self.identity.clone(), server, own, number))
    }

    /// A limit of the policy denied the call: waits until it may admit it.
    async fn denied(&mut self, decision: &Decision, now: Timestamp) -> Result<(), Refusal> {
        if let Some(refusal) = refusal_for_ever(decision) {
            return Err(refusal);
        }
        let retry_after = decision.retry_after().unwrap_or(Ticks::ONE);
        let (key, quota) = match decision.cause() {
            Some(cause) => (BucketKey::Limit(cause.limit.name().into(), cause.key_hash), cause.quota),
            None => (BucketKey::Limit("operator".into(), 0), None),
        };
        let due = now + retry_after;
        let is_permit = matches!(quota, Some(Quota::Concurrency(_)));
        let until = if is_permit && !self.shared.engine.store().never_waits() {
            due.min(now + PERMIT_POLL)
        } else {
            due
        };
        // A permit may return at any moment.
        let due = if is_permit { now } else { due };
        let host = Arc::clone(&self.identity.host);
        let earliest = {
            let mut queues = self.shared.queues();
            queues.note_denial(&key, &host, LimitShape::new(due, quota), now);
            queues.behind(&key, self.arrival.rank).unwrap_or(due)
        };
        self.wait(key, Some(until), earliest, Basis::Policy, now).await
    }

    /// Waits in the queue of a bucket until an instant, or until it is woken.
    async fn wait(
        &mut self,
        key: BucketKey,
        until: Option<Timestamp>,
        earliest: Timestamp,
        basis: Basis,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        let deadline = self.arrival.leaves_until();
        if earliest > deadline || now >= deadline {
            let name = self.name_of(&key);
            return Err(self.too_late(name, basis, earliest, now));
        }
        if self.queued.as_ref().is_none_or(|queued| queued.key != key) {
            self.queued = None;
            let shared = &**self.shared;
            shared.queues().enter(&key, &self.identity.host, self.arrival.rank, self.call.units(), now)?;
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

    fn name_of(&self, key: &BucketKey) -> String {
        match key {
            BucketKey::Origin(_) => self.identity.host.to_string(),
            BucketKey::Named(_, name) | BucketKey::Unknown(_, name) => {
                format!("{} ({name})", self.identity.host)
            }
            BucketKey::Limit(name, _) => name.to_string(),
        }
    }

    fn too_late(&self, bucket: String, basis: Basis, until: Timestamp, now: Timestamp) -> Refusal {
        let until = until.max(now);
        Refusal::TooLate {
            bucket,
            basis,
            wait: until.since(self.arrival.at),
            max_wait: self.arrival.max_wait,
            until,
        }
    }
}

/// What a call has reserved before it leaves. Dropping it refunds the reservation. A store that does not answer keeps the
/// units charged, which errs on the safe side.
struct Reserved<'o, S: Store + Send + Sync + 'static> {
    shared: &'o Arc<Shared<S>>,
    reservation: Option<Reservation>,
}

impl<S: Store + Send + Sync + 'static> Drop for Reserved<'_, S> {
    fn drop(&mut self) {
        if let Some(mut reservation) = self.reservation.take() {
            let shared = Arc::clone(self.shared);
            background::run(async move {
                let now = shared.engine.now();
                let _ = shared.engine.reservations().cancel(&mut reservation, now).await;
            });
        }
    }
}

/// The limit that makes a call wait longest.
fn slowest_of(decision: &Decision) -> String {
    let slowest = decision.limits().max_by_key(|status| match status.outcome.verdict {
        Verdict::Wait(wait) => wait,
        _ => Ticks::ZERO,
    });
    slowest.map_or_else(String::new, |status| status.limit.name().to_owned())
}

fn limit_keys(decision: &Decision) -> Vec<BucketKey> {
    decision.limits().map(|status| BucketKey::Limit(status.limit.name().into(), status.key_hash)).collect()
}

pub(crate) fn costs_of(call: &Call, decision: &Decision) -> Costs {
    let by_limit = decision.limits().map(|status| (status.limit.name().to_owned(), status.cost));
    Costs { stated: call.units(), by_limit: by_limit.collect() }
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
