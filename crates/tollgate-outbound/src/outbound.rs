//! The handle of a program: calls wait here until they may leave.

use std::future::poll_fn;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;

use tollgate::store::Store;
use tollgate::{
    CheckRequest, Clock, CredentialDigest, Decision, Engine, MemoryStore, Policy, PolicyError, Quota,
    Reservation, Ticks, Timestamp, Verdict,
};

use crate::bucket::Behaviour;
use crate::call::Call;
use crate::guard::Guard;
use crate::learned::Costs;
use crate::random::Random;
use crate::refusal::{Numbers, Refusal};
use crate::report::{Forecast, Report, Totals};
use crate::room::{BucketKey, CallIdentity, LimitShape, Rank, RoomSettings, Step, WaitingRoom};
use crate::settings::Settings;
use crate::state::Shared;

/// How often a call that waits for a permit of a shared store asks again: no other process wakes it.
const PERMIT_POLL: Ticks = Ticks::from_millis(100);

/// Keeps calls to other people's APIs within their limits. Clones share everything.
///
/// ```
/// use tollgate_outbound::{Call, Outbound};
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let policy = "limits: [{name: payments-requests, by: [host], rate: 25/s, burst: 1}]".parse()?;
/// let outbound = Outbound::of_policy(policy);
/// let guard = outbound.acquire(&Call::to("api.example.com")).await?;
/// // Send the request now, and hand the response over: guard.settle(…).await
/// # drop(guard);
/// # Ok(())
/// # }
/// ```
pub struct Outbound<S = MemoryStore> {
    pub(crate) shared: Arc<Shared<S>>,
}

impl<S> Clone for Outbound<S> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl Outbound {
    /// By the policy in a file, with counters in memory.
    ///
    /// # Errors
    /// The file cannot be read, or is not a policy.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, PolicyError> {
        Ok(Self::new(Engine::open(path)?, Settings::default()))
    }

    /// By a policy, with counters in memory.
    #[must_use]
    pub fn of_policy(policy: Policy) -> Self {
        Self::new(Engine::builder().policy(policy).build(), Settings::default())
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
        self.shared.room().leave(&self.key, self.rank);
    }
}

/// A call on its way through the waiting room.
struct Waiting<'o, 'c, S> {
    outbound: &'o Outbound<S>,
    call: &'c Call,
    request: CheckRequest<'c>,
    identity: CallIdentity,
    rank: Rank,
    arrived: Timestamp,
    max_wait: Ticks,
    queued: Option<Queued<'o, S>>,
}

impl<S: Store + Send + Sync + 'static> Outbound<S> {
    /// By an engine of any store.
    #[must_use]
    pub fn new(engine: Engine<S>, settings: Settings) -> Self {
        let behaviour = Behaviour {
            replenish: settings.replenish,
            freeze_min: Ticks::ceil_from(settings.freeze_min),
            sends_one_first: false,
        };
        let room =
            RoomSettings { behaviour, discovers: settings.discovers_buckets, queue_max: settings.queue_max };
        let random = settings.seed.map_or_else(Random::new, Random::seeded);
        let shared = Shared::new(engine, settings, WaitingRoom::new(room, random));
        Self { shared: Arc::new(shared) }
    }

    /// The engine, which has the policy and the counters.
    #[must_use]
    pub fn engine(&self) -> &Engine<S> {
        &self.shared.engine
    }

    /// The clock that calls wait by.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        self.shared.engine.maintenance().clock()
    }

    /// The settings.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.shared.settings
    }

    /// Waits until the call may leave. Calls leave in the order of their [priority](Call::priority) and arrival.
    /// Dropping the future leaves the queue.
    ///
    /// # Errors
    /// When the call cannot leave in time, or not at all; nothing is charged then.
    pub async fn acquire(&self, call: &Call) -> Result<Guard<S>, Refusal> {
        let request = call.request()?;
        let arrived = self.shared.engine.now();
        let ticket = self.shared.room().next_ticket();
        let waiting = Waiting {
            outbound: self,
            call,
            request,
            identity: self.identity(call),
            rank: Rank { at: arrived + call.urgency().handicap(), ticket },
            arrived,
            max_wait: call.wait_max().unwrap_or(Ticks::ceil_from(self.shared.settings.max_wait)),
            queued: None,
        };
        let totals = &self.shared.totals;
        let result = waiting.run().await;
        let counter = if result.is_ok() { &totals.calls } else { &totals.refused };
        counter.fetch_add(1, Ordering::Relaxed);
        result
    }

    /// When the last of `calls` such calls could leave if the first left now, behind the calls that wait already.
    /// Nothing is charged.
    ///
    /// # Errors
    /// When such a call can never leave, or its attributes are not valid.
    pub async fn forecast(&self, call: &Call, calls: u64) -> Result<Forecast, Refusal> {
        let request = call.request()?;
        let now = self.shared.engine.now();
        let decision = self.shared.engine.operator().peek(&request, now).await;
        if let Some(refusal) = refusal_for_ever(&decision) {
            return Err(refusal);
        }
        let costs = costs_of(call, &decision);
        let room = self.shared.room();
        let keys = room.server_keys(&self.identity(call));
        let (mut last, name) = room.forecast(&keys, &costs, calls, now);
        let mut bucket = name.map(|name| (name.to_string(), Numbers::Server));
        for status in decision.limits() {
            let Some(quota) = status.quota else { continue };
            let key = BucketKey::Limit(status.limit.name().into(), status.key_hash);
            let units = status.cost.max(1).saturating_mul(calls).saturating_add(room.waiting_units(&key));
            let at = now + crate::report::wait_for(quota, &status.outcome, units);
            if at > last {
                (last, bucket) = (at, Some((status.limit.name().to_owned(), Numbers::Policy)));
            }
        }
        Ok(Forecast { wait: last.since(now), at: last, bucket })
    }

    /// What waits, what is frozen, and what the servers said.
    #[must_use]
    pub fn report(&self) -> Report {
        let now = self.shared.engine.now();
        Report { totals: Totals::of(&self.shared.totals), buckets: self.shared.room().report(now) }
    }

    fn identity(&self, call: &Call) -> CallIdentity {
        let host: Arc<str> = call.text(Call::HOST).unwrap_or_default().into();
        let named = self.shared.settings.identity.iter().filter_map(|name| Some((name, call.text(name)?)));
        let text: String = named.map(|(name, value)| format!("{name}={value}\n")).collect();
        // Only the digest of a credential is kept.
        let origin = if text.is_empty() {
            Arc::clone(&host)
        } else {
            format!("{host} {}", CredentialDigest::of(&text)).into()
        };
        CallIdentity { origin, host, route: call.text(Call::ROUTE).unwrap_or_default().into() }
    }
}

impl<'o, S: Store + Send + Sync + 'static> Waiting<'o, '_, S> {
    async fn run(mut self) -> Result<Guard<S>, Refusal> {
        loop {
            let now = self.shared().engine.now();
            let server = self.shared().room().server_keys(&self.identity);
            let mut keys = server.clone();
            keys.extend(self.counters(now));
            let costs = Costs { stated: self.call.units(), by_limit: Vec::new() };
            let host = Arc::clone(&self.identity.host);
            let step = self.shared().room().step(&keys, &host, self.rank, &costs, now);
            match step {
                Step::Refused(refusal) => return Err(refusal),
                Step::Wait { key, until, earliest, numbers } => {
                    self.wait(key, until, earliest, numbers, now).await?;
                }
                Step::Go => {
                    if let Some(guard) = self.attempt(server, now).await? {
                        return Ok(guard);
                    }
                }
            }
        }
    }

    fn shared(&self) -> &'o Arc<Shared<S>> {
        &self.outbound.shared
    }

    /// The counters of the policy that the call is about. Nothing is charged.
    fn counters(&self, now: Timestamp) -> Vec<BucketKey> {
        match self.shared().engine.try_check(&self.request.clone().looking(), now) {
            Ok(decision) => limit_keys(&decision),
            Err(prepared) => {
                prepared.counters().map(|(name, key)| BucketKey::Limit(name.into(), key)).collect()
            }
        }
    }

    /// Charges the call, and sends it if the buckets of the server have room.
    async fn attempt(&mut self, server: Vec<BucketKey>, now: Timestamp) -> Result<Option<Guard<S>>, Refusal> {
        let shared = self.shared();
        let lifetime = Ticks::ceil_from(shared.settings.call_max);
        let reservations = shared.engine.reservations();
        let (decision, reservation) = reservations.reserve(&self.request, lifetime, now).await;
        let Some(mut reservation) = reservation else {
            if decision.is_allowed() {
                return Ok(self.send(&decision, None, server, now)); // No limit counts it.
            }
            self.denied(&decision, now).await?;
            return Ok(None);
        };
        if let Verdict::Wait(wait) = decision.verdict() {
            let at = now + wait;
            if at.since(self.arrived) > self.max_wait {
                let cause = decision.limits().max_by_key(|status| match status.outcome.verdict {
                    Verdict::Wait(wait) => wait,
                    _ => Ticks::ZERO,
                });
                let bucket = cause.map_or_else(String::new, |status| status.limit.name().to_owned());
                give_back(shared, reservation).await;
                return Err(self.too_late(bucket, Numbers::Policy, at, now));
            }
            let left = GivenBack { shared, reservation: Some(reservation) };
            self.outbound.clock().sleep_until(at).await;
            reservation = left.keep();
        }
        let now = shared.engine.now();
        let (guard, unused) = self.send_reserved(&decision, reservation, server, now);
        if let Some(unused) = unused {
            give_back(shared, unused).await;
        }
        Ok(guard)
    }

    fn send_reserved(
        &mut self,
        decision: &Decision,
        reservation: Reservation,
        server: Vec<BucketKey>,
        now: Timestamp,
    ) -> (Option<Guard<S>>, Option<Reservation>) {
        match self.send(decision, None, server, now) {
            Some(mut guard) => {
                guard.hold(reservation);
                (Some(guard), None)
            }
            None => (None, Some(reservation)),
        }
    }

    /// Sends the call, unless the server's buckets have filled up meanwhile.
    fn send(
        &mut self,
        decision: &Decision,
        reservation: Option<Reservation>,
        server: Vec<BucketKey>,
        now: Timestamp,
    ) -> Option<Guard<S>> {
        let costs = Arc::new(costs_of(self.call, decision));
        let number = self.shared().room().send(&server, &costs, now)?;
        self.queued = None;
        let waited = now.since(self.arrived);
        if waited > Ticks::ZERO {
            let totals = &self.shared().totals;
            totals.waited.fetch_add(1, Ordering::Relaxed);
            totals.waited_micros.fetch_add(waited.as_micros(), Ordering::Relaxed);
        }
        let own = decision.limits().filter(|status| status.source.has_numbers());
        let own = own.map(|status| crate::guard::OwnCounter {
            key: BucketKey::Limit(status.limit.name().into(), status.key_hash),
            limit: status.limit.name().to_owned(),
            remaining: status.outcome.remaining,
            is_concurrency: matches!(status.quota, Some(Quota::Concurrency(_))),
        });
        let own = own.collect();
        Some(Guard::new(
            self.shared(),
            self.call.clone(),
            self.identity.clone(),
            server,
            own,
            number,
            reservation,
        ))
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
        let until = if is_permit && !self.shared().engine.store().never_waits() {
            due.min(now + PERMIT_POLL)
        } else {
            due
        };
        // A permit may return at any moment.
        let due = if is_permit { now } else { due };
        let host = Arc::clone(&self.identity.host);
        let earliest = {
            let mut room = self.shared().room();
            room.note_denial(&key, &host, LimitShape::new(due, quota), now);
            room.behind(&key, self.rank).unwrap_or(due)
        };
        self.wait(key, Some(until), earliest, Numbers::Policy, now).await
    }

    /// Waits in the queue of a bucket until an instant, or until it is woken.
    async fn wait(
        &mut self,
        key: BucketKey,
        until: Option<Timestamp>,
        earliest: Timestamp,
        numbers: Numbers,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        let deadline = self.arrived + self.max_wait;
        if earliest > deadline || now >= deadline {
            let name = self.name_of(&key);
            return Err(self.too_late(name, numbers, earliest, now));
        }
        if self.queued.as_ref().is_none_or(|queued| queued.key != key) {
            self.queued = None;
            let shared = &**self.shared();
            shared.room().enter(&key, &self.identity.host, self.rank, self.call.units(), now)?;
            self.queued = Some(Queued { shared, key: key.clone(), rank: self.rank });
        }
        let until = until.map_or(deadline, |until| until.min(deadline));
        let mut sleep = pin!(self.outbound.clock().sleep_until(until));
        let rank = self.rank;
        poll_fn(|context| {
            if self.shared().room().poll_woken(&key, rank, context.waker()) {
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

    fn too_late(&self, bucket: String, numbers: Numbers, until: Timestamp, now: Timestamp) -> Refusal {
        let until = until.max(now);
        Refusal::TooLate { bucket, numbers, wait: until.since(self.arrived), max_wait: self.max_wait, until }
    }
}

/// A reservation of a call that sleeps. Dropping it gives the slot back.
struct GivenBack<'o, S: Store + Send + Sync + 'static> {
    shared: &'o Arc<Shared<S>>,
    reservation: Option<Reservation>,
}

impl<S: Store + Send + Sync + 'static> GivenBack<'_, S> {
    #[allow(clippy::expect_used, reason = "it is set until here")]
    fn keep(mut self) -> Reservation {
        self.reservation.take().expect("a reservation is kept once")
    }
}

impl<S: Store + Send + Sync + 'static> Drop for GivenBack<'_, S> {
    fn drop(&mut self) {
        if let Some(reservation) = self.reservation.take() {
            let shared = Arc::clone(self.shared);
            crate::background::run(async move { give_back(&shared, reservation).await });
        }
    }
}

/// Gives back what a call took that does not leave.
async fn give_back<S: Store + Send + Sync + 'static>(shared: &Arc<Shared<S>>, mut reservation: Reservation) {
    let now = shared.engine.now();
    // A store that does not answer keeps the units charged, which errs on the safe side.
    let _ = shared.engine.reservations().cancel(&mut reservation, now).await;
}

fn limit_keys(decision: &Decision) -> Vec<BucketKey> {
    decision.limits().map(|status| BucketKey::Limit(status.limit.name().into(), status.key_hash)).collect()
}

fn costs_of(call: &Call, decision: &Decision) -> Costs {
    let by_limit = decision.limits().map(|status| (status.limit.name().to_owned(), status.cost));
    Costs { stated: call.units(), by_limit: by_limit.collect() }
}

/// The refusal of a call that no wait lets pass.
fn refusal_for_ever(decision: &Decision) -> Option<Refusal> {
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
