//! Metrics of decisions. Each [`Decision`] is recorded once, in [`crate::service::Service::check`], and everything that
//! shows numbers reads them here. Bounded for any traffic: limits come from the policy, and keys only through a sketch.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::broadcast;
use tollgate::policy::Limit;
use tollgate::{CheckRequest, Decision, Policy, Ticks, Timestamp};
use tollgate_compat::Rule;
pub(crate) use tollgate_gateway::Capacity;
use tollgate_gateway::UpstreamSeries;
use tollgate_tower::shed::Shedder;

use crate::protocol::Protocol;
use crate::random;

pub(crate) mod names;
pub(crate) mod striped;
mod histogram;
mod ledger;
mod sketch;
mod top;
mod unlimited;
mod events;
mod recent;
mod connections;
pub(crate) mod usage;
pub(crate) mod process;
mod exposition;
mod compat;
mod gateway;
mod overflow;
mod overload;
mod waiting;
mod scrape;
mod shared;
pub(crate) mod history;
pub(crate) mod trace;
#[cfg(test)]
mod tests;

pub(crate) use compat::{Key, RuleVerdict};
pub(crate) use connections::Open;
pub(crate) use exposition::METRICS_TYPE;
pub(crate) use shared::{LimitLeases, ShardMetrics, ShardState, StoreMetrics};

use connections::Connections;
use histogram::{DURATION_BOUNDS, Histogram, RETRY_BOUNDS};
use ledger::Ledger;
use names::{Metric, VERDICTS, verdict_index};
use overflow::Overflow;
pub(crate) use overflow::is_crowded;
use recent::RecentDenials;
pub(crate) use sketch::Denial;
use striped::StripedCounters;
pub(crate) use top::TOP_WINDOW_SECONDS;
use top::Top;
use trace::Tracer;
use unlimited::Unlimited;
use waiting::Waiting;

/// How many events a slow reader of the live view may fall behind before it loses some.
const EVENTS_MAX: usize = 1_024;

/// One in this many decisions is timed, on a protocol that samples.
const WATCHED: u64 = 16;

/// One decision, for the live view.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) at: Timestamp,
    pub(crate) protocol: Protocol,
    pub(crate) allowed: bool,
    /// The name of the verdict.
    pub(crate) verdict: &'static str,
    /// The limit that denied, or the tightest one.
    pub(crate) limit: String,
    /// The limits in shadow that would have denied.
    pub(crate) would_deny: Vec<String>,
    /// The attributes of the request, as text, shortened.
    pub(crate) attributes: Vec<(String, String)>,
    pub(crate) retry_after_ms: Option<u64>,
    /// Why the request was refused, if a limit of a policy or an operator refused it.
    pub(crate) reason: Option<String>,
    pub(crate) source: &'static str,
}

/// A frequent key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TopKey {
    pub(crate) limit: String,
    /// The values it counts by, as text, shortened.
    pub(crate) key: String,
    /// The same values by attribute. Empty if one of them is too long to be known whole.
    pub(crate) attributes: Vec<(String, String)>,
    pub(crate) decisions: u64,
    pub(crate) denied: u64,
    /// How often the limit would have denied it, were it not in shadow.
    pub(crate) would_deny: u64,
    /// The latest denial of these.
    pub(crate) last_denial: Option<Denial>,
    /// Its answers by source, in the order of [`names::SOURCES`].
    pub(crate) sources: [u64; names::SOURCES.len()],
    /// Whether its numbers are extrapolated from sampled decisions.
    pub(crate) is_estimated: bool,
    /// The first of the counted decisions.
    pub(crate) since: Timestamp,
}

/// The latest denial of a key by a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LastDenial {
    pub(crate) denial: Denial,
    /// The number of denials of the key since [`Meter::top_since`].
    pub(crate) recent: u64,
}

/// One number that another module provides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub(crate) metric: &'static Metric,
    /// A label, with name and value from closed lists.
    pub(crate) label: Option<(&'static str, &'static str)>,
    pub(crate) value: u64,
}

impl Sample {
    /// A number without a label.
    pub(crate) const fn new(metric: &'static Metric, value: u64) -> Self {
        Self { metric, label: None, value }
    }
}

/// Whether a request may pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// It may pass.
    Admitted,
    /// It may not.
    Refused,
}

impl From<&Decision> for Admission {
    fn from(decision: &Decision) -> Self {
        if decision.is_allowed() { Admission::Admitted } else { Admission::Refused }
    }
}

/// Provides numbers at each scrape.
type Probe = Box<dyn Fn(Timestamp) -> Vec<Sample> + Send + Sync>;
/// Provides the numbers of a shared store at each scrape.
type StoreProbe = Box<dyn Fn() -> StoreMetrics + Send + Sync>;

/// Provides the numbers of a gateway's upstreams at each scrape.
type Upstreams = Box<dyn Fn() -> Vec<UpstreamSeries> + Send + Sync>;

/// Counts decisions.
pub(crate) struct Meter {
    events: broadcast::Sender<Arc<Event>>,
    /// Whether there may be watchers. Asking the channel would take a lock.
    is_watched: AtomicBool,
    budget: events::EventBudget,
    recent: RecentDenials,
    /// What limits in shadow would have denied. Apart, so that it displaces no denial.
    recent_in_shadow: RecentDenials,
    verdicts: StripedCounters,
    unlimited: Unlimited,
    ledger: Ledger,
    durations: [Histogram; Protocol::ALL.len()],
    retries: Histogram,
    top: Top,
    connections: Connections,
    /// Locked when a probe is registered, and at a scrape.
    probes: Mutex<Vec<Probe>>,
    tracer: OnceLock<Tracer>,
    shared: OnceLock<StoreProbe>,
    gateway: OnceLock<Upstreams>,
    overload: OnceLock<Arc<Shedder>>,
    waiting: Waiting,
    /// Whether memory is full.
    pub(crate) overflow: Overflow,
}

impl Meter {
    pub(crate) fn new() -> Self {
        Self {
            events: broadcast::channel(EVENTS_MAX).0,
            is_watched: AtomicBool::new(false),
            budget: events::EventBudget::new(events::EVENTS_PER_SECOND),
            recent: RecentDenials::new(),
            recent_in_shadow: RecentDenials::new(),
            verdicts: StripedCounters::new(VERDICTS.len() * Protocol::ALL.len()),
            unlimited: Unlimited::new(),
            ledger: Ledger::new(),
            durations: Protocol::ALL.map(|_| Histogram::new(&DURATION_BOUNDS)),
            retries: Histogram::new(&RETRY_BOUNDS),
            top: Top::default(),
            connections: Connections::default(),
            probes: Mutex::default(),
            tracer: OnceLock::new(),
            shared: OnceLock::new(),
            gateway: OnceLock::new(),
            overload: OnceLock::new(),
            waiting: Waiting::default(),
            overflow: Overflow::default(),
        }
    }

    /// Counts one decision, with the outcomes of rules beside the policy. On the hot path: takes no lock and allocates
    /// nothing, unless there is a watcher or the decision is sampled for the top keys.
    #[inline]
    pub(crate) fn record(
        &self,
        request: &CheckRequest<'_>,
        decision: &Decision,
        rules: &[Rule<'_>],
        protocol: Protocol,
        now: Timestamp,
    ) {
        // If capacity is checked as well, a request that passes the limits is not decided yet.
        let is_open = protocol == Protocol::Gateway && decision.is_allowed() && self.overload.get().is_some();
        if !is_open {
            self.verdicts.add(verdict_cell(protocol, verdict_index(decision)), 1);
        }
        self.ledger.record(decision, protocol);
        self.record_rules(rules, protocol);
        self.overflow.note_decision(decision, now);
        self.unlimited.record(request, decision, rules, protocol, now);
        if let Some(retry) = decision.retry_after() {
            self.retries.observe(retry.as_micros().saturating_mul(1_000));
        }
        self.top.record(request, decision, now);
        if !decision.is_allowed() {
            self.recent.keep(self.recent.share_of(decision), now, || {
                let key = decision.cause().map(|status| top::key_of(status.limit, request));
                (key.unwrap_or_default(), events::event(request, decision, protocol, now))
            });
        }
        if let Some(shadow) = events::shadow_denials(decision).next() {
            let share = self.recent_in_shadow.share_of_shadow(decision, &shadow);
            self.recent_in_shadow.keep(share, now, || {
                (top::key_of(shadow.limit, request), events::event(request, decision, protocol, now))
            });
        }
        // Relaxed: a new watcher sees decisions from about now on.
        if self.is_watched.load(Ordering::Relaxed) {
            self.publish_decision(request, decision, protocol, now);
        }
        if let Some(tracer) = self.tracer.get() {
            tracer.record(decision, protocol, now);
        }
        if tracing::enabled!(tracing::Level::DEBUG) {
            events::log(request, decision, protocol);
        }
    }

    /// Counts a decision by a limit that came with the call, and not by a limit of the policy.
    pub(crate) fn record_unnamed(&self, admission: Admission, protocol: Protocol) {
        let verdict = match admission {
            Admission::Admitted => names::ALLOW,
            Admission::Refused => names::DENY,
        };
        self.verdicts.add(verdict_cell(protocol, verdict), 1);
    }

    /// Counts requests that an Envoy admitted within its quota although no limit applies to them. Their attributes have
    /// these names.
    pub(crate) fn passed_by_envoy<'n>(
        &self,
        names: impl Iterator<Item = &'n str>,
        requests: u64,
        now: Timestamp,
    ) {
        if requests > 0 {
            self.unlimited.passed_by_envoy(names, requests, now);
        }
    }

    /// Counts the result of the capacity check for a request of the gateway that limits admitted.
    pub(crate) fn record_capacity(&self, capacity: Capacity) {
        let verdict = match capacity {
            Capacity::Passed => names::ALLOW,
            Capacity::PassedLate => names::WAIT,
            Capacity::Shed => names::SHED,
        };
        self.verdicts.add(verdict_cell(Protocol::Gateway, verdict), 1);
    }

    /// Counts a request that was refused because it could not be read or counted.
    pub(crate) fn record_fault(&self, protocol: Protocol) {
        self.verdicts.add(verdict_cell(protocol, names::FAULT), 1);
    }

    /// A stopwatch for one decision in [`WATCHED`], for a protocol where reading the time twice would cost a good part
    /// of a decision.
    pub(crate) fn sampled_watch(&self) -> Option<Stopwatch> {
        random::next().is_multiple_of(WATCHED).then(Stopwatch::start)
    }

    /// Counts the duration of one decision on a protocol, from the complete request to the finished answer.
    pub(crate) fn took(&self, protocol: Protocol, duration: Duration) {
        self.durations[protocol as usize].observe(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX));
    }

    /// The most frequent keys of the last one or two minutes, in descending order. An estimate is too high only by the
    /// error of sampling. Limits with a single counter for all requests have no keys, and are not included.
    pub(crate) fn top(&self, most: usize, now: Timestamp) -> Vec<TopKey> {
        self.top.list(most, now)
    }

    /// The instant since which [`Self::top`] counts.
    pub(crate) fn top_since(&self, now: Timestamp) -> Timestamp {
        self.top.since(now)
    }

    /// The latest denial of a request with this key by a limit, if it is remembered.
    pub(crate) fn last_denial(
        &self,
        limit: &Limit,
        request: &CheckRequest<'_>,
        now: Timestamp,
    ) -> Option<LastDenial> {
        if let Some((denial, recent)) = self.top.last_denial(limit, request, now) {
            return Some(LastDenial { denial, recent });
        }
        let event = self.recent.last(limit.name(), &top::key_of(limit, request))?;
        let retry_after = event.retry_after_ms.map(Ticks::from_millis);
        Some(LastDenial { denial: Denial { at: event.at, retry_after }, recent: 0 })
    }

    /// The denials since an instant, oldest first, as far as they are remembered.
    pub(crate) fn denials_since(&self, at: Timestamp) -> Vec<Arc<Event>> {
        self.recent.since(at)
    }

    /// The decisions since an instant that a limit in shadow would have denied, as [`Self::denials_since`].
    pub(crate) fn shadow_denials_since(&self, at: Timestamp) -> Vec<Arc<Event>> {
        self.recent_in_shadow.since(at)
    }

    /// How far the memory of these reaches, as [`Self::denials_forgotten_until`].
    pub(crate) fn shadow_denials_forgotten_until(&self) -> Option<Timestamp> {
        self.recent_in_shadow.forgotten_until()
    }

    /// The instant up to which keys were denied of which no denial is remembered, if there are such keys.
    pub(crate) fn denials_forgotten_until(&self) -> Option<Timestamp> {
        self.recent.forgotten_until()
    }

    /// Decisions from now on, while the receiver lives, at most [`live::EVENTS_PER_SECOND`].
    pub(crate) fn watch(&self) -> broadcast::Receiver<Arc<Event>> {
        let receiver = self.events.subscribe();
        // After the subscription, so that it overrides a concurrent store of false by a thread that found no watcher.
        self.is_watched.store(true, Ordering::SeqCst);
        receiver
    }

    /// Counts an open connection until the returned value is dropped.
    pub(crate) fn opened(&self, protocol: Protocol) -> Open {
        self.connections.opened(protocol)
    }

    /// The number of open connections of a protocol.
    pub(crate) fn open(&self, protocol: Protocol) -> u64 {
        self.connections.open(protocol)
    }

    /// Registers a policy, so that its limits are shown before the first decision.
    pub(crate) fn adopt(&self, policy: &Arc<Policy>) {
        self.ledger.adopt(policy);
    }

    /// Whether a limit applied to any decision of this process; `None` for one that is counted with others.
    pub(crate) fn has_applied(&self, limit: &Limit) -> Option<bool> {
        self.ledger.has_applied(limit.name())
    }

    /// Registers the rules of another program's configuration, which replace those of the previous one.
    pub(crate) fn adopt_rules(&self, names: &[&str]) {
        self.ledger.adopt_rules(names);
    }

    /// Registers a probe of another module, called at each scrape. The function must be fast.
    pub(crate) fn probe(&self, probe: impl Fn(Timestamp) -> Vec<Sample> + Send + Sync + 'static) {
        self.probes().push(Box::new(probe));
    }

    /// Registers the numbers of a shared store, read at each scrape. There is one, and a second call changes nothing.
    pub(crate) fn show_store(&self, numbers: impl Fn() -> StoreMetrics + Send + Sync + 'static) {
        let _ = self.shared.set(Box::new(numbers));
    }

    /// Registers the numbers of a gateway, read at each scrape. There is one, and a second call changes nothing.
    pub(crate) fn show_gateway(&self, numbers: impl Fn() -> Vec<UpstreamSeries> + Send + Sync + 'static) {
        let _ = self.gateway.set(Box::new(numbers));
    }

    /// Registers the numbers of overload controllers, read at each scrape. From then on the gateway reports whether
    /// there was capacity for a request. There is one set of controllers, and a second call changes nothing.
    pub(crate) fn show_overload(&self, shedder: Arc<Shedder>) {
        let _ = self.overload.set(shedder);
    }

    /// Records that a request starts to wait in a queue.
    pub(crate) fn began_waiting(&self, wait: Ticks) {
        self.waiting.began(wait);
    }

    /// Records that a request no longer waits.
    pub(crate) fn ended_waiting(&self) {
        self.waiting.ended();
    }

    /// Traces decisions from now on. A meter has one tracer, and a second call changes nothing.
    pub(crate) fn trace(&self, tracer: Tracer) {
        let _ = self.tracer.set(tracer);
    }

    fn probes(&self) -> MutexGuard<'_, Vec<Probe>> {
        // A probe that panicked once may be called again.
        self.probes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The index of the counter of a verdict on a protocol.
const fn verdict_cell(protocol: Protocol, verdict: usize) -> usize {
    protocol as usize * VERDICTS.len() + verdict
}

/// Measures a duration.
pub(crate) struct Stopwatch(Instant);

#[allow(
    clippy::disallowed_methods,
    reason = "how long the process itself takes is no time that decisions know"
)]
impl Stopwatch {
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn elapsed(&self) -> Duration {
        Instant::now().saturating_duration_since(self.0)
    }
}
