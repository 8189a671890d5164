//! The handle of a program: calls wait here until they may leave.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tollgate::store::Store;
use tollgate::{Clock, CredentialDigest, Engine, LimitStatus, MemoryStore, Policy, PolicyError, Ticks};

use crate::bucket::Behaviour;
use crate::call::Call;
use crate::guard::Guard;
use crate::keys::{BucketKey, CallIdentity};
use crate::queue::Arrival;
use crate::queues::{BucketReport, QueueSettings, Queues};
use crate::random::Random;
use crate::refusal::{Basis, Refusal};
use crate::report::{Forecast, Report, Totals, admits_now};
use crate::settings::Settings;
use crate::shared_freezes::FreezeChange;
use crate::state::Shared;
use crate::waiting::{Waiting, costs_of, refusal_for_ever};

/// Keeps calls to other people's APIs within their limits. Clones share everything.
///
/// ```
/// use tollgate_outbound::{Call, Outbound};
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let policy = "limits: [{name: payments-requests, by: [host], rate: 25/s, burst: 1}]".parse()?;
/// let outbound = Outbound::of_policy(policy);
/// let guard = outbound.acquire(&Call::to("api.example.com")).await?;
/// // Send the request now, and hand the response over: guard.settle(…).await?
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

impl<S: Store + Send + Sync + 'static> Outbound<S> {
    /// By an engine of any store.
    #[must_use]
    pub fn new(engine: Engine<S>, settings: Settings) -> Self {
        let behaviour = Behaviour {
            replenish: settings.replenish,
            freeze_min: Ticks::ceil_from(settings.freeze_min),
            sends_one_first: false,
        };
        let queues =
            QueueSettings { behaviour, discovers: settings.discovers_buckets, queue_max: settings.queue_max };
        let random = settings.seed.map_or_else(Random::new, Random::seeded);
        let shared = Shared::new(engine, settings, Queues::new(queues, random));
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
        self.acquire_as(call, self.arrive(call)).await
    }

    /// The arrival of a call: its rank in the queues, which it keeps for all its attempts.
    pub(crate) fn arrive(&self, call: &Call) -> Arrival {
        let ticket = self.shared.queues().next_ticket();
        Arrival::new(call, ticket, &self.shared.settings, self.shared.engine.now())
    }

    /// Waits as a call that arrived earlier.
    pub(crate) async fn acquire_as(&self, call: &Call, arrival: Arrival) -> Result<Guard<S>, Refusal> {
        let totals = &self.shared.totals;
        let mut fitted: Option<Call> = None;
        let result = loop {
            let call = fitted.as_ref().unwrap_or(call);
            let result = self.wait(call, arrival).await;
            // An estimate above what a limit admits at once is no reason to refuse the call for ever.
            match &result {
                Err(Refusal::Never { capacity, .. }) => match call.fitted(*capacity) {
                    Some(next) => fitted = Some(next),
                    None => break result,
                },
                _ => break result,
            }
        };
        let counter = if result.is_ok() { &totals.calls } else { &totals.refused };
        counter.fetch_add(1, Ordering::Relaxed);
        result
    }

    /// Acquires a copy of a call that is under way, which arrived then. It does not wait: it leaves only if every limit
    /// admits it at once, and no call waits for what it would take.
    pub(crate) async fn acquire_hedge(&self, call: &Call, arrival: Arrival) -> Option<Guard<S>> {
        let request = call.request().ok()?;
        let now = self.shared.engine.now();
        // A slot that is given back may be lost on a shared store, so none is taken that would have to be.
        let decision = self.shared.engine.operator().peek(&request, now).await;
        let costs = costs_of(call, self.shared.engine.ledger().prepare(&request, now).as_ref());
        let mut counters = decision.limits().filter(|status| status.source.has_numbers());
        let admits = |status: LimitStatus<'_>| {
            admits_now(status.quota, &status.outcome) >= costs.in_limit(status.limit.name())
        };
        if !decision.is_allowed() || !counters.all(admits) {
            return None;
        }
        let ticket = self.shared.queues().next_ticket();
        let guard = self.wait(call, Arrival::behind_all(ticket, self.shared.engine.now())).await.ok()?;
        let totals = &self.shared.totals;
        totals.calls.fetch_add(1, Ordering::Relaxed);
        totals.hedges.fetch_add(1, Ordering::Relaxed);
        Some(guard.arrived(arrival))
    }

    async fn wait(&self, call: &Call, arrival: Arrival) -> Result<Guard<S>, Refusal> {
        let request = call.request()?;
        Waiting::new(&self.shared, call, request, self.identity(call), arrival).run().await
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
        let costs = costs_of(call, self.shared.engine.ledger().prepare(&request, now).as_ref());
        let queues = self.shared.queues();
        let keys = queues.server_keys(&self.identity(call), now);
        let (mut last, name) = queues.forecast(&keys, &costs.times(calls), now);
        let mut bucket = name.map(|name| (name.to_string(), Basis::Server));
        for status in decision.limits() {
            let Some(quota) = status.quota else { continue };
            let cost = costs.in_limit(status.limit.name());
            let key = BucketKey::Limit(status.limit.name().into(), status.key_hash);
            let (bucket_name, capacity) = (status.limit.name().to_owned(), status.outcome.limit);
            if cost > capacity {
                return Err(Refusal::Never { bucket: bucket_name, capacity });
            }
            let units = cost.saturating_mul(calls).saturating_add(queues.waiting_units(&key));
            let at = now + crate::report::wait_for(quota, &status.outcome, units);
            if at > last {
                (last, bucket) = (at, Some((bucket_name, Basis::Policy)));
            }
        }
        Ok(Forecast { wait: last.since(now), at: last, bucket })
    }

    /// Reports the waiting calls, the frozen buckets and the numbers of the servers.
    #[must_use]
    pub fn report(&self) -> Report {
        let now = self.shared.engine.now();
        Report { totals: Totals::of(&self.shared.totals), buckets: self.shared.queues().report(now) }
    }

    /// The frozen buckets, by name.
    #[must_use]
    pub fn freezes(&self) -> Vec<BucketReport> {
        let now = self.shared.engine.now();
        self.shared.queues().freezes(now)
    }

    /// Ends the freezes of these buckets, and returns them as they were. The next call finds out whether the server takes
    /// calls again; if it refuses that one, the bucket is frozen again. In a fleet every process follows.
    pub fn thaw(&self, is_meant: impl Fn(&BucketReport) -> bool) -> Vec<BucketReport> {
        let now = self.shared.engine.now();
        let thawed = self.shared.queues().thaw(is_meant, now);
        let mut reports = Vec::new();
        for (key, report, freeze) in thawed {
            self.shared.outbox.publish(&key, &report.owner, FreezeChange::Thawed(freeze.until));
            reports.push(report);
        }
        reports.sort_by(|a, b| a.name.cmp(&b.name));
        reports
    }

    pub(crate) fn identity(&self, call: &Call) -> CallIdentity {
        let host: Arc<str> = call.text(Call::HOST).unwrap_or_default().into();
        let named = self.shared.settings.identity.iter().filter_map(|name| Some((name, call.text(name)?)));
        let text: String = named.map(|(name, value)| format!("{name}={value}\n")).collect();
        // Only the digest of a credential is kept.
        let origin = if text.is_empty() {
            Arc::clone(&host)
        } else {
            format!("{host} {}", CredentialDigest::of(&text)).into()
        };
        let text = |name| Arc::from(call.text(name).unwrap_or_default());
        CallIdentity { origin, host, route: text(Call::ROUTE), scope: text(Call::SCOPE) }
    }
}
