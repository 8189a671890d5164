//! The service behind every protocol: the engine with its clock, what callers hold, and the metrics. A protocol turns
//! bytes into a [`CheckRequest`] and a [`Decision`] into bytes. Everything between is here.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwapOption;
use tollgate::engine::{Prepared, SwapError};
use tollgate::request::Descriptor;
use tollgate::store::Store;
use tollgate::{
    CheckRequest, Clock, Decision, Engine, HeaderPolicy, QuotaError, Reservation, Secret, SwapReport, Ticks,
    Timestamp, Verdict,
};

use crate::auth::Auth;
use crate::identity::Identity;
use crate::log_throttle::LogThrottle;
use crate::policy_file::Rules;
use crate::protocol::Protocol;
use crate::store::Stores;
use crate::telemetry::Meter;
use comparison::PolicyComparison;
use deciding::Deciding;
use holds::CallerHolds;
use request_ring::RequestRing;
use rls::Envoy;
use throttle_counters::{CounterTable, ThrottleCounters};
use tollgate_compat::{ActiveConfig, CompatConfig, Options, Rule, is_guard};
use tollgate_tower::attributes::Reader;
use tollgate_tower::shed::Shedder;

pub(crate) mod request_ring;
pub(crate) mod comparison;
pub(crate) mod throttle_limit;
pub(crate) mod throttle_counters;
pub(crate) mod deciding;
pub(crate) mod compat;
pub(crate) mod holds;
pub(crate) mod rls;
pub(crate) mod throttle;

/// How long the charge of a refused request may be given back. In practice it is given back immediately.
const STEP_BACK_LIFETIME: Ticks = Ticks::from_secs(1);

/// The engine, and what its callers hold.
pub(crate) struct Service<S = Stores> {
    pub(crate) engine: Engine<S>,
    clock: Clock,
    pub(crate) started_at: Timestamp,
    pub(crate) headers: HeaderPolicy,
    /// Reads attributes from requests that proxies ask about.
    pub(crate) reader: Reader,
    /// Identifies the callers of requests that carry attributes.
    pub(crate) identity: Identity,
    pub(crate) holds: CallerHolds,
    /// Counters of limits that come with the call.
    pub(crate) throttle_counters: ThrottleCounters,
    pub(crate) meter: Arc<Meter>,
    pub(crate) envoy: Envoy,
    /// Which clients may ask. Every protocol except health checks uses it.
    pub(crate) auth: Auth,
    /// The comparison with a candidate policy, if there is one.
    pub(crate) comparison: PolicyComparison,
    /// The requests of the last hour, for candidate policies.
    pub(crate) ring: RequestRing,
    /// Another program's configuration. While there is one, it decides instead of the engine's policy.
    compat: ArcSwapOption<ActiveConfig>,
    pub(crate) compat_options: Options,
    /// Overload control of the gateway, if the config has any.
    pub(crate) overload: Option<Overload<S>>,
    /// Other engines of this process derive their secrets from that of the engine.
    rekey_listeners: Mutex<Vec<RekeyListener<S>>>,
    pub(crate) distrusted: LogThrottle,
}

/// The overload controllers of the gateway.
pub(crate) struct Overload<S = Stores> {
    pub(crate) shedder: Arc<Shedder>,
    /// The engine that counts a capacity of the whole fleet, if servers share a store.
    pub(crate) capacity: Option<Arc<Engine<S>>>,
}

/// Gets the engine whenever its keys are hashed with another secret.
type RekeyListener<S> = Box<dyn Fn(&Engine<S>) + Send + Sync>;

impl<S: Store> Service<S> {
    /// Answers with this engine, at the times of this clock.
    pub(crate) fn new(engine: Engine<S>, clock: Clock) -> Self {
        let meter = Arc::new(Meter::new());
        let (policy, ring) = (engine.policy(), RequestRing::default());
        if !is_guard(&policy) {
            meter.adopt(&policy);
            ring.follow(&policy);
        }
        Self {
            throttle_counters: ThrottleCounters::new(CounterTable::new(0), |name| {
                engine.ledger().key_family(name)
            }),
            engine,
            started_at: clock.now(),
            clock,
            envoy: Envoy::new(&HeaderPolicy::default()),
            headers: HeaderPolicy::default(),
            reader: Reader::default(),
            identity: Identity::default(),
            holds: CallerHolds::default(),
            meter,
            auth: Auth::default(),
            comparison: PolicyComparison::default(),
            ring,
            compat: ArcSwapOption::empty(),
            compat_options: Options::default(),
            overload: None,
            rekey_listeners: Mutex::default(),
            distrusted: LogThrottle::default(),
        }
    }

    /// Sets how attributes are read, and which quota headers callers get.
    pub(crate) fn reading(self, reader: Reader, headers: HeaderPolicy) -> Self {
        let identity = Identity::of(&reader);
        Self { reader, identity, envoy: Envoy::new(&headers), headers, ..self }
    }

    /// Sets the table with the counters of limits that come with the call.
    pub(crate) fn throttling(mut self, table: CounterTable) -> Self {
        self.throttle_counters = ThrottleCounters::new(table, |name| self.engine.ledger().key_family(name));
        self
    }

    /// The time for the next answers.
    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// The wall-clock time of `now`. It uses the offset by which windows end, so that the end of a window is exact to
    /// the second.
    pub(crate) fn on_wall(&self, now: Timestamp) -> Timestamp {
        now.on_wall(self.engine.maintenance().wall())
    }

    /// If the wall clock was set, updates everything whose windows start by it.
    pub(crate) fn follow_wall(&self) {
        let now = self.now();
        let (before, wall) = (self.engine.maintenance().wall(), self.clock.wall_offset(now));
        if let Some(capacity) = self.capacity() {
            capacity.maintenance().follow_wall(wall, now);
        }
        if self.engine.maintenance().follow_wall(wall, now) {
            let seconds = (wall.as_micros() - before.as_micros()) / 1_000_000;
            tracing::warn!(
                seconds,
                "the wall clock was set: calendar windows, those of the epoch and absolute times in headers follow it, and \
                 what was counted goes on to count"
            );
        }
    }

    /// The overload controllers of the gateway, if the config has any.
    pub(crate) fn shedder(&self) -> Option<&Shedder> {
        self.overload.as_ref().map(|overload| &*overload.shedder)
    }

    /// The engine that counts a capacity of the whole fleet, if there is one.
    pub(crate) fn capacity(&self) -> Option<&Engine<S>> {
        self.overload.as_ref()?.capacity.as_deref()
    }

    /// The clock of the service.
    pub(crate) const fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Decides about one request. This method, [`Self::try_check`], [`Self::check_prepared`], [`Self::check_beside`],
    /// [`Self::check_within`] and [`Self::reserve`] are the only paths from a protocol to a decision of the engine, so
    /// that each decision is counted once and compared. A read that decides nothing may go to the engine.
    pub(crate) async fn check(
        &self,
        request: &CheckRequest<'_>,
        now: Timestamp,
        protocol: Protocol,
    ) -> Decision {
        let decision = self.engine.check(request, now).await;
        self.note(request, &[], &decision, now, protocol);
        decision
    }

    /// Decides if the store answers without waiting. The error is the prepared request, for [`Self::check_prepared`].
    #[inline]
    pub(crate) fn try_check(
        &self,
        request: &CheckRequest<'_>,
        now: Timestamp,
        protocol: Protocol,
    ) -> Result<Decision, Prepared> {
        let decision = self.engine.try_check(request, now)?;
        self.note(request, &[], &decision, now, protocol);
        Ok(decision)
    }

    /// Decides about a request that [`Self::try_check`] has prepared.
    pub(crate) async fn check_prepared(
        &self,
        prepared: Prepared,
        request: &CheckRequest<'_>,
        now: Timestamp,
        protocol: Protocol,
    ) -> Decision {
        let decision = prepared.check(&self.engine, request, now).await;
        self.note(request, &[], &decision, now, protocol);
        decision
    }

    /// Decides about a request that rules beside the policy have admitted.
    pub(crate) async fn check_beside(
        &self,
        request: &CheckRequest<'_>,
        rules: &[Rule<'_>],
        now: Timestamp,
        protocol: Protocol,
    ) -> Decision {
        let decision = self.engine.check(request, now).await;
        self.note(request, rules, &decision, now, protocol);
        decision
    }

    /// Decides about a request of a caller that waits at most `wait_max` for its slot. A limit with a longer wait
    /// denies it, and the retry time is when the wait is no longer than that.
    pub(crate) async fn check_within(
        &self,
        request: &CheckRequest<'_>,
        wait_max: Ticks,
        now: Timestamp,
        protocol: Protocol,
    ) -> Decision {
        let is_too_long =
            |decision: &Decision| matches!(decision.verdict(), Verdict::Wait(wait) if wait > wait_max);
        // A request that cannot wait that long takes no slot.
        if self.engine.policy().shapes() {
            let foreseen = self.engine.reservations().forecast(request, now).await;
            if is_too_long(&foreseen) {
                let denied = foreseen.impatient(wait_max);
                self.note(request, &[], &denied, now, protocol);
                return denied;
            }
        }
        let mut decision = self.engine.check(request, now).await;
        if is_too_long(&decision) {
            // Other requests came between the read and the charge.
            self.step_back(&mut decision, now).await;
            decision = decision.impatient(wait_max);
        }
        self.note(request, &[], &decision, now, protocol);
        decision
    }

    /// Gives back the charge of a decision. If the store does not answer, the charge stays: that denies too much for a
    /// while, but admits nothing too much.
    async fn step_back(&self, decision: &mut Decision, now: Timestamp) {
        if let Some(permit) = decision.take_permit() {
            let _ = self.engine.reservations().release(&permit, now).await;
        }
        let mut taken = self.engine.reservations().of_decision(decision, STEP_BACK_LIFETIME, now);
        let _ = self.engine.reservations().cancel(&mut taken, now).await;
    }

    /// Records a decision in the metrics, in the comparison and among the requests of the last hour, with the outcomes of
    /// rules beside the policy.
    #[inline]
    fn note(
        &self,
        request: &CheckRequest<'_>,
        rules: &[Rule<'_>],
        decision: &Decision,
        now: Timestamp,
        protocol: Protocol,
    ) {
        if self.overtaken(decision).is_some() {
            return; // It is no decision: foreign rules are asked instead, and that is counted.
        }
        match request.descriptors().count() {
            1 => self.meter.record(request, decision, rules, protocol, now),
            _ => self.meter.record(&merged(request), decision, rules, protocol, now),
        }
        // Requests that an operator blocks are skipped, because no policy decides them.
        if decision.block().is_none() {
            self.comparison.observe(request, now);
            self.ring.keep(request, now);
        }
    }

    /// Decides, and reserves the cost until the real cost is known.
    pub(crate) async fn reserve(
        &self,
        request: &CheckRequest<'_>,
        lifetime: Ticks,
        now: Timestamp,
        protocol: Protocol,
    ) -> (Decision, Option<Reservation>) {
        let (decision, reservation) = self.engine.reservations().reserve(request, lifetime, now).await;
        self.note(request, &[], &decision, now, protocol);
        (decision, reservation)
    }

    /// Activates other rules, as a reload does. Counters are kept.
    ///
    /// # Errors
    /// When the engine rejects them. The old rules stay active.
    pub(crate) fn replace(&self, rules: Rules, now: Timestamp) -> Result<SwapReport, ReplaceError> {
        let before = Deciding::of(self);
        let report = match rules {
            Rules::Native(policy) => {
                let report = self.engine.swap(policy, now)?;
                // Only now: until the engine has its policy, the old configuration decides.
                self.compat.store(None);
                report
            }
            Rules::Compat(compat, guard) => {
                let decided = self.compat();
                self.activate(compat, now)?;
                let swapped = self.engine.swap(guard, now);
                if swapped.is_err() {
                    // All or nothing: the previous rules stay active.
                    self.compat.store(decided);
                    self.name_rules();
                }
                swapped?
            }
        };
        if self.compat().is_none() {
            let policy = self.engine.policy();
            self.meter.adopt(&policy);
            self.ring.follow(&policy);
        }
        self.name_rules();
        Ok(before.report(&Deciding::of(self), report))
    }

    /// Hashes keys with the secret that a fleet shares, once it is known. Every counter starts anew under it.
    pub(crate) fn rekey(&self, secret: Secret) {
        self.engine.maintenance().siblings().rekey(secret);
        if let Some(capacity) = self.capacity() {
            capacity.maintenance().siblings().rekey_as(&self.engine);
        }
        self.envoy.rekeyed();
        // A window length that was valid before is valid again. A reload in between creates its own windows.
        let again = |compat: &Arc<ActiveConfig>| {
            compat.rekeyed(&self.engine).map_or_else(|_| Arc::clone(compat), Arc::new)
        };
        self.compat.rcu(|compat| compat.as_ref().map(again));
        self.rekey_listeners().iter().for_each(|listener| listener(&self.engine));
    }

    /// Calls a listener now, and again whenever the engine hashes keys with another secret. A shared store takes charges
    /// only once its secret is known, and the listeners are called before.
    pub(crate) fn follow_secret(&self, listener: impl Fn(&Engine<S>) + Send + Sync + 'static) {
        let mut listeners = self.rekey_listeners();
        listener(&self.engine);
        listeners.push(Box::new(listener));
    }

    fn rekey_listeners(&self) -> MutexGuard<'_, Vec<RekeyListener<S>>> {
        self.rekey_listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Activates another program's configuration.
    ///
    /// # Errors
    /// When a window's length is out of range. The previous rules stay active.
    pub(crate) fn activate(&self, rules: CompatConfig, now: Timestamp) -> Result<(), QuotaError> {
        let before = self.compat.load_full();
        let next = ActiveConfig::new(rules, &self.engine, before.as_deref(), now)?;
        self.compat.store(Some(Arc::new(next)));
        self.name_rules();
        Ok(())
    }

    /// Registers the names of compat rules with the meter, so that they are shown before the first request.
    fn name_rules(&self) {
        let compat = self.compat();
        self.meter.adopt_rules(&compat.as_ref().map(|compat| compat.rules.metrics()).unwrap_or_default());
    }

    /// The compat rules, if they became active during a decision and the guard policy therefore refused the request.
    #[inline]
    pub(crate) fn overtaken(&self, decision: &Decision) -> Option<Arc<ActiveConfig>> {
        decision.fault().and_then(|_| self.compat())
    }

    /// Another program's configuration, if one is active. Loaded once for each decision, so that a reload never splits
    /// one.
    pub(crate) fn compat(&self) -> Option<Arc<ActiveConfig>> {
        self.compat.load_full()
    }
}

/// All attributes of the descriptors, for the metrics. If two descriptors have different values for a name, the first
/// wins.
fn merged<'a>(request: &CheckRequest<'a>) -> CheckRequest<'a> {
    let mut all = CheckRequest::new();
    for attribute in request.descriptors().flat_map(Descriptor::attributes) {
        // An attribute that is rejected is a duplicate name, or exceeds the maximum number.
        let _ = all.push(attribute.name, attribute.value);
    }
    all
}

/// Why rules could not be activated.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReplaceError {
    /// The engine rejects the policy.
    #[error(transparent)]
    Swap(#[from] SwapError),
    /// A window of a compat configuration is out of range.
    #[error(transparent)]
    Window(#[from] QuotaError),
}

#[cfg(test)]
mod tests {
    use tollgate::Policy;

    use super::*;
    use crate::rls::RlsRequest;

    /// Every call of every protocol has its own future, which is copied when it is created and when it is spawned. A
    /// future on the fast path therefore has no space for the state of the slow path.
    #[test]
    fn futures_are_small() {
        let policy = Policy::compile("test", b"limits: [{name: all, rate: 1/s}]").unwrap();
        let clock = Clock::precise();
        let service = Service::new(Engine::builder().policy(policy).clock(clock.clone()).build(), clock);
        let (request, now) = (CheckRequest::new(), service.now());
        let check = size_of_val(&service.check(&request, now, Protocol::Http));
        let descriptors = vec![crate::rls::Descriptor::default()];
        let rls_request = RlsRequest { domain: "d".to_owned(), descriptors, hits_addend: 0 };
        let rls = size_of_val(&rls::answer(&service, &rls_request, now));
        assert!(check <= 640 && rls <= 512, "{check} and {rls} bytes");
    }
}
