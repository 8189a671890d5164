//! What every wire asks: the engine with its clock, what callers hold, and what is counted about it all. A wire turns bytes into a
//! [`CheckRequest`] and a [`Decision`] into bytes; between the two it is here.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use tollgate::engine::SwapError;
use tollgate::store::Store;
use tollgate::{
    CheckRequest, Clock, Decision, Engine, HeaderPolicy, Permit, Quota, QuotaError, Reservation, Secret,
    SwapReport, Ticks, Timestamp, Verdict,
};

use crate::auth::Auth;
use crate::decision_json::Hold;
use crate::foreign::{Foreign, InForce, Options, is_guard};
use crate::identity::Identity;
use crate::policy_file::Rules;
use crate::protocol::Wire;
use crate::seldom::Seldom;
use crate::store::Stores;
use crate::telemetry::{Meter, Rule};
use beside::Beside;
use cells::{Cells, Table};
use holds::Holds;
use rls::Envoy;
use tollgate_tower::attributes::Reader;
use tollgate_tower::shed::Shedder;

pub(crate) mod beside;
pub(crate) mod cell;
pub(crate) mod cells;
mod deciding;
pub(crate) mod foreign;
pub(crate) mod holds;
pub(crate) mod rls;
pub(crate) mod throttle;

/// How long what a refused request took may be given back; it is given back at once.
const STEP_BACK_LIFETIME: Ticks = Ticks::from_secs(1);
/// Most permits that the server remembers; about 64 MiB of them.
const PERMITS_MAX: usize = 1 << 18;
/// How long it can be reported how a request ended; then it counts as a failure.
const REPORT_LIFETIME: Ticks = Ticks::from_secs(60);
/// Most open reservations; about 64 MiB of them.
const RESERVATIONS_MAX: usize = 1 << 17;

/// The engine, and what its callers hold.
pub(crate) struct Service<S = Stores> {
    pub(crate) engine: Engine<S>,
    clock: Clock,
    pub(crate) started_at: Timestamp,
    pub(crate) headers: HeaderPolicy,
    /// How attributes are read from requests that proxies ask about.
    pub(crate) reader: Reader,
    /// Who requests are about that tell attributes.
    pub(crate) identity: Identity,
    pub(crate) permits: Holds<Permit>,
    pub(crate) reservations: Holds<Reservation>,
    /// What requests took of limits that count only failures, until it is reported how they ended.
    pub(crate) reports: Holds<Reservation>,
    /// Counters of limits that come with the call.
    pub(crate) cells: Cells,
    pub(crate) meter: Arc<Meter>,
    pub(crate) envoy: Envoy,
    /// Who may ask; every wire but the health checks looks here.
    pub(crate) auth: Auth,
    /// Another policy beside the one in force, if two are compared.
    pub(crate) beside: Beside,
    /// Somebody else's configuration; while there is one, it decides, and not the engine's policy.
    foreign: ArcSwapOption<InForce>,
    pub(crate) foreign_options: Options,
    /// What the gateway refuses by when there is no capacity; none unless the config has it.
    pub(crate) overload: Option<Arc<Shedder>>,
    /// What counts the fleet's capacity in the store that servers share, if that is to be counted.
    pub(crate) capacity: Option<Arc<Engine<S>>>,
    no_room: Seldom,
    pub(crate) distrusted: Seldom,
}

impl<S: Store> Service<S> {
    /// Answers by this engine, at the times of this clock.
    pub(crate) fn new(engine: Engine<S>, clock: Clock) -> Self {
        let meter = Arc::new(Meter::new());
        let policy = engine.policy();
        if !is_guard(&policy) {
            meter.adopt(&policy);
        }
        Self {
            cells: Cells::new(Table::new(0), |name| engine.key_family(name)),
            engine,
            started_at: clock.now(),
            clock,
            envoy: Envoy::new(&HeaderPolicy::default()),
            headers: HeaderPolicy::default(),
            reader: Reader::default(),
            identity: Identity::default(),
            permits: Holds::new(PERMITS_MAX),
            reservations: Holds::new(RESERVATIONS_MAX),
            reports: Holds::new(RESERVATIONS_MAX),
            meter,
            auth: Auth::default(),
            beside: Beside::default(),
            foreign: ArcSwapOption::empty(),
            foreign_options: Options::default(),
            overload: None,
            capacity: None,
            no_room: Seldom::default(),
            distrusted: Seldom::default(),
        }
    }

    /// The same, with another way to read attributes, and to tell callers about their quotas.
    pub(crate) fn reading(self, reader: Reader, headers: HeaderPolicy) -> Self {
        let identity = Identity::of(&reader);
        Self { reader, identity, envoy: Envoy::new(&headers), headers, ..self }
    }

    /// The time by which requests are answered.
    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// What the wall clock shows when requests are answered by this time: by the setting that windows end by, so that a window's end is
    /// told to the second.
    pub(crate) fn on_wall(&self, now: Timestamp) -> Timestamp {
        now.on_wall(self.engine.wall())
    }

    /// Lets everything whose windows begin by the wall clock know if that was set.
    pub(crate) fn follow_wall(&self) {
        let now = self.now();
        let (before, wall) = (self.engine.wall(), self.clock.wall_offset(now));
        if let Some(capacity) = &self.capacity {
            capacity.follow_wall(wall, now);
        }
        if self.engine.follow_wall(wall, now) {
            let seconds = (wall.as_micros() - before.as_micros()) / 1_000_000;
            tracing::warn!(
                seconds,
                "the wall clock was set: calendar windows, those of the epoch and absolute times in headers follow it, and \
                 what was counted goes on to count"
            );
        }
    }

    /// The clock that tells it.
    pub(crate) const fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Answers one question. This, [`Self::check_at_once`], [`Self::check_within`], [`Self::check_views`], [`Self::check_views_at_once`] and [`Self::reserve`] are the only ways from a wire
    /// to a decision of the engine, so that each is counted once and compared. A look that decides nothing may go to the engine.
    pub(crate) async fn check(&self, request: &CheckRequest<'_>, now: Timestamp, wire: Wire) -> Decision {
        let decision = self.engine.check(request, now).await;
        self.note(request, &decision, now, wire);
        decision
    }

    /// The same for a caller who waits no longer than `wait_max` for its turn: a limit that would let it wait longer denies it, and says
    /// when the wait is no longer than that.
    pub(crate) async fn check_within(
        &self,
        request: &CheckRequest<'_>,
        wait_max: Ticks,
        now: Timestamp,
        wire: Wire,
    ) -> Decision {
        let is_too_long =
            |decision: &Decision| matches!(decision.verdict(), Verdict::Wait(wait) if wait > wait_max);
        // A request that cannot wait for long takes no slot to find out.
        if self.engine.shapes() {
            let foreseen = self.engine.foresee(request, now).await;
            if is_too_long(&foreseen) {
                let denied = foreseen.impatient(wait_max);
                self.note(request, &denied, now, wire);
                return denied;
            }
        }
        let mut decision = self.engine.check(request, now).await;
        if is_too_long(&decision) {
            // Others came between the look and the charge.
            self.step_back(request, &mut decision, now).await;
            decision = decision.impatient(wait_max);
        }
        self.note(request, &decision, now, wire);
        decision
    }

    /// Gives back what a decision took. What a store that does not answer keeps denies too much for a while, and admits nothing too much.
    async fn step_back(&self, request: &CheckRequest<'_>, decision: &mut Decision, now: Timestamp) {
        if let Some(permit) = decision.take_permit() {
            let _ = self.engine.release(&permit, now).await;
        }
        let mut taken = self.engine.set_aside(request, decision, STEP_BACK_LIFETIME, now);
        let _ = self.engine.cancel(&mut taken, now).await;
    }

    /// The same as [`Self::check`] where the store need not be waited for; `None` where it must be.
    #[inline]
    pub(crate) fn check_at_once(
        &self,
        request: &CheckRequest<'_>,
        now: Timestamp,
        wire: Wire,
    ) -> Option<Decision> {
        let decision = self.engine.check_at_once(std::slice::from_ref(request), now)?;
        self.note(request, &decision, now, wire);
        Some(decision)
    }

    /// Tells whoever counts and compares.
    #[inline]
    fn note(&self, request: &CheckRequest<'_>, decision: &Decision, now: Timestamp, wire: Wire) {
        if self.overtaken(decision).is_some() {
            return; // It is no decision: foreign rules are asked instead, and that is counted.
        }
        self.meter.record(request, decision, wire, now);
        self.beside.observe(std::slice::from_ref(request), decision, now);
    }

    /// The same for a request that is told in several views. Rules beside the policy have admitted it.
    pub(crate) async fn check_views(
        &self,
        views: &[CheckRequest<'_>],
        rules: &[Rule<'_>],
        now: Timestamp,
        wire: Wire,
    ) -> Decision {
        let decision = self.engine.check_views(views, now).await;
        self.note_views(views, rules, &decision, now, wire);
        decision
    }

    /// The same where the store need not be waited for; `None` where it must be.
    pub(crate) fn check_views_at_once(
        &self,
        views: &[CheckRequest<'_>],
        now: Timestamp,
        wire: Wire,
    ) -> Option<Decision> {
        let decision = self.engine.check_at_once(views, now)?;
        self.note_views(views, &[], &decision, now, wire);
        Some(decision)
    }

    fn note_views(
        &self,
        views: &[CheckRequest<'_>],
        rules: &[Rule<'_>],
        decision: &Decision,
        now: Timestamp,
        wire: Wire,
    ) {
        if self.overtaken(decision).is_some() {
            return; // As in `note`.
        }
        match views {
            [request] => self.meter.record_beside(request, decision, rules, wire, now),
            _ => self.meter.record_beside(&merged(views), decision, rules, wire, now),
        }
        self.beside.observe(views, decision, now);
    }

    /// The same, and reserves what it costs until the real cost is known.
    pub(crate) async fn reserve(
        &self,
        request: &CheckRequest<'_>,
        lifetime: Ticks,
        now: Timestamp,
        wire: Wire,
    ) -> (Decision, Option<Reservation>) {
        let (decision, reservation) = self.engine.reserve(request, lifetime, now).await;
        self.note(request, &decision, now, wire);
        (decision, reservation)
    }

    /// Puts other rules in force, as a reload does. Counters are kept.
    ///
    /// # Errors
    /// When the engine cannot take them; the old ones stay in force.
    pub(crate) fn replace(&self, rules: Rules, now: Timestamp) -> Result<SwapReport, ReplaceError> {
        let before = self.deciding();
        let report = match rules {
            Rules::Native(policy) => {
                let report = self.engine.swap(policy, now)?;
                // Only now: until the engine has its policy, the old configuration decides.
                self.foreign.store(None);
                report
            }
            Rules::Foreign(foreign, guard) => {
                let decided = self.foreign();
                self.put_in_force(foreign, now)?;
                let swapped = self.engine.swap(guard, now);
                if swapped.is_err() {
                    // All or nothing: what decided before goes on.
                    self.foreign.store(decided);
                    self.name_rules();
                }
                swapped?
            }
        };
        if self.foreign().is_none() {
            self.meter.adopt(&self.engine.policy());
        }
        self.name_rules();
        Ok(before.report(&self.deciding(), report))
    }

    /// Hashes keys with the secret that a fleet shares, once it is known. Every counter starts anew under it.
    pub(crate) fn rekey(&self, secret: Secret) {
        self.engine.rekey(secret);
        if let Some(capacity) = &self.capacity {
            capacity.rekey_as(&self.engine);
        }
        self.envoy.rekeyed();
        // Windows of a length that was good once are good again. A reload that comes between makes its own.
        let again = |foreign: &Arc<InForce>| {
            foreign.rekeyed(&self.engine).map_or_else(|_| Arc::clone(foreign), Arc::new)
        };
        self.foreign.rcu(|foreign| foreign.as_ref().map(again));
    }

    /// Lets somebody else's configuration decide from now on.
    ///
    /// # Errors
    /// When a window's length is out of range; what decided before stays in force.
    pub(crate) fn put_in_force(&self, rules: Foreign, now: Timestamp) -> Result<(), QuotaError> {
        let before = self.foreign.load_full();
        let next = InForce::new(rules, &self.engine, before.as_deref(), now)?;
        self.foreign.store(Some(Arc::new(next)));
        self.name_rules();
        Ok(())
    }

    /// Tells the meter which foreign rules there are, so that they are shown before anybody asks.
    fn name_rules(&self) {
        let foreign = self.foreign();
        self.meter.adopt_rules(&foreign.as_ref().map(|foreign| foreign.rules.metrics()).unwrap_or_default());
    }

    /// Somebody else's configuration, if one is in force. Taken once for each decision, so that a reload never splits one.
    pub(crate) fn foreign(&self) -> Option<Arc<InForce>> {
        self.foreign.load_full()
    }

    /// Keeps the permit that a decision gave, so that the caller can give it back by its id.
    #[inline]
    pub(crate) fn hold(&self, decision: &mut Decision, now: Timestamp) -> Hold {
        match decision.take_permit() {
            Some(permit) => self.hold_permit(permit, permit_lifetime(decision), now),
            None => Hold::None,
        }
    }

    /// Keeps what a request took of limits that count only failures, under an id to report its end by. Without room it stays charged.
    pub(crate) fn await_report(
        &self,
        request: &CheckRequest<'_>,
        decision: &Decision,
        now: Timestamp,
    ) -> Option<String> {
        let awaiting = self.engine.awaiting(request, decision, REPORT_LIFETIME, now)?;
        match self.reports.put(awaiting, now + REPORT_LIFETIME, now) {
            Ok(id) => Some(id.to_string()),
            Err(_) => {
                if let Some(skipped) = self.no_room.due(now) {
                    tracing::warn!(skipped, "no room for another report: the request counts as a failure");
                }
                None
            }
        }
    }

    fn hold_permit(&self, permit: Permit, lifetime: Ticks, now: Timestamp) -> Hold {
        match self.permits.put(permit, now + lifetime, now) {
            Ok(id) => Hold::Permit { id: id.to_string() },
            Err(_) => {
                // The place stays taken until it expires: that denies too much for a while, and admits nothing too much.
                if let Some(skipped) = self.no_room.due(now) {
                    tracing::warn!(
                        skipped,
                        "no room for another permit: it cannot be given back before it expires"
                    );
                }
                Hold::None
            }
        }
    }
}

/// All that the views tell, for whoever counts decisions. Where two of them have a name for different values the first counts.
fn merged<'a>(views: &[CheckRequest<'a>]) -> CheckRequest<'a> {
    let mut all = CheckRequest::new();
    for attribute in views.iter().flat_map(|view| view.attributes()) {
        // What does not fit is a name that is there already, or one too many to be told.
        let _ = all.push(attribute.name, attribute.value);
    }
    all
}

/// Why rules could not be put in force.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReplaceError {
    /// The engine cannot take the policy.
    #[error(transparent)]
    Swap(#[from] SwapError),
    /// A window of a foreign configuration is out of range.
    #[error(transparent)]
    Window(#[from] QuotaError),
}

/// How long the permits of a decision live: the longest of its concurrency limits.
fn permit_lifetime(decision: &Decision) -> Ticks {
    let lifetime = |quota: &Quota| match quota {
        Quota::Concurrency(permits) => permits.ttl(),
        _ => Ticks::ZERO,
    };
    decision.limits().filter_map(|status| status.quota).map(lifetime).max().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use tollgate::Policy;

    use super::*;
    use crate::rls::{Descriptor, Question};

    /// Every call of every wire has a future of its own, which is copied when it is made and when it is spawned. So what waits for
    /// nothing has no room in it for what may have to wait.
    #[test]
    fn futures_are_small() {
        let (policy, _) = Policy::compile("test", b"limits: [{name: all, rate: 1/s}]").unwrap();
        let clock = Clock::precise();
        let service = Service::new(Engine::new(policy, clock.now()), clock);
        let (request, now) = (CheckRequest::new(), service.now());
        let check = size_of_val(&service.check(&request, now, Wire::Http));
        let descriptors = vec![Descriptor::default()];
        let question = Question { domain: "d".to_owned(), descriptors, hits_addend: 0 };
        let rls = size_of_val(&rls::answer(&service, &question, now));
        assert!(check <= 640 && rls <= 512, "{check} and {rls} bytes");
    }
}
