//! Watches a shared store: logs when it becomes unreachable and reachable, keeps its state for `/readyz` and the
//! metrics, and gives the engine the fleet's secret once it is known. Decisions do not wait for any of it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;
use tollgate::algorithm::fixed_window::Align;
use tollgate::engine::FallbackReport;
use tollgate::lease::LeaseReport;
use tollgate::time::WallOffset;
use tollgate::{Engine, Source, Ticks, Timestamp};
use tollgate_redis::{BreakerState, LATENCY_BOUNDS, ReplyClass, Report, ShardReport, UnservedSlot};

use crate::service::Service;
use crate::store::Stores;
use crate::telemetry::{ShardMetrics, ShardState, StoreMetrics};
use crate::time_text::rfc3339;

/// How long a start waits for the fleet's secret, so that a server with a reachable store counts in it from its first
/// decision.
const JOIN_TIMEOUT: Duration = Duration::from_millis(500);
/// How much longer it waits for shards that are becoming ready, if some of the store answers.
const WARM_TIMEOUT: Duration = Duration::from_secs(2);
/// How often the state is checked.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How often a start checks whether the store is prepared for the policy.
const PREPARED_EVERY: Duration = Duration::from_millis(2);
/// How many times the warm-up request is tried. Without it, the first caller waits for the script to load.
const GREETINGS_MAX: usize = 5;
/// Maximum number of shards that a report names.
const NAMED_MAX: usize = 8;

/// The state of a shared store, as this server sees it.
pub(crate) struct StoreWatch {
    place: String,
    seen: Mutex<StoreHealth>,
}

#[derive(Clone, Default)]
struct StoreHealth {
    /// Since when a shard does not serve, if one does not.
    since: Option<Timestamp>,
    /// The total duration of earlier outages.
    outage: Ticks,
    /// The affected shards, and why.
    troubled: Vec<String>,
    /// Whether the store has another secret than this server.
    has_other_secret: bool,
}

/// The part of `/readyz` about the store.
#[derive(Debug, Serialize)]
pub(crate) struct StoreReport {
    place: String,
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    shards: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    meaning: Option<&'static str>,
}

impl StoreWatch {
    /// Watches a store at this address, which is shown.
    pub(crate) fn new(place: String) -> Arc<Self> {
        Arc::new(Self { place, seen: Mutex::default() })
    }

    fn seen(&self) -> MutexGuard<'_, StoreHealth> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a shard does not serve, or the store has another secret than this server.
    pub(crate) fn is_degraded(&self) -> bool {
        let seen = self.seen();
        seen.since.is_some() || seen.has_other_secret
    }

    /// The warning for an operator while a shard does not serve, with the cure.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.seen().since.is_some().then(|| {
            format!(
                "the store {} does not answer, so each limit decides by its on_store_failure until it does; `tollgate store \
                 check URL` finds the cause",
                self.place
            )
        })
    }

    /// The report to send.
    pub(crate) fn report(&self, wall: WallOffset) -> StoreReport {
        let StoreHealth { since, troubled, has_other_secret, .. } = self.seen().clone();
        let away = "decisions that need these shards are made without them, each limit by its on_store_failure, until they are back";
        let apart = "the store has another secret than this server, which therefore shares no counters: restart it, or set \
                     TOLLGATE_STORE_SECRET on all servers";
        let (status, meaning) = match (since, has_other_secret) {
            (Some(_), _) => ("away", Some(away)),
            (None, true) => ("apart", Some(apart)),
            (None, false) => ("ok", None),
        };
        StoreReport {
            place: self.place.clone(),
            status,
            since: since.map(|since| rfc3339(since, wall)),
            shards: troubled,
            meaning,
        }
    }

    /// Checks the state repeatedly, while it is polled.
    pub(crate) async fn run(self: Arc<Self>, service: Arc<Service>) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            self.look_at(&service);
            settle(&service).await;
        }
    }

    /// Checks the state once.
    pub(crate) fn look_at(&self, service: &Service) {
        if let Some(fleet) = service.engine.store().fleet() {
            self.observe(&fleet.redis().report(), service.now());
        }
    }

    /// Gets the fleet's secret in the background, however long that takes. Returns when the secret is known and the
    /// store is prepared for the policy, or after a timeout.
    pub(crate) async fn join(service: &Arc<Service>) {
        let began = tokio::time::Instant::now();
        let joining = tokio::spawn({
            let service = Arc::clone(service);
            async move {
                let Some(fleet) = service.engine.store().fleet() else { return };
                if !fleet.redis().has_joined() {
                    fleet.redis().join(|secret| service.rekey(secret)).await;
                    tracing::info!("the fleet's secret is known: counters are shared from now on");
                }
                let left = (JOIN_TIMEOUT + WARM_TIMEOUT).saturating_sub(began.elapsed());
                if !fleet.redis().warm(left).await {
                    tracing::warn!(
                        "not every shard of the store was ready at the start: first decisions may be made without it"
                    );
                }
                greet(&service).await;
                while !fleet.redis().is_prepared() && began.elapsed() < JOIN_TIMEOUT + WARM_TIMEOUT {
                    tokio::time::sleep(PREPARED_EVERY).await;
                }
            }
        });
        let mut joining = joining; // Dropped, it goes on.
        if tokio::time::timeout(JOIN_TIMEOUT, &mut joining).await.is_err() && is_reached(service) {
            let _ = tokio::time::timeout(WARM_TIMEOUT, &mut joining).await;
        }
    }

    fn observe(&self, report: &Report, now: Timestamp) {
        let is_troubled = |shard: &&ShardReport| shard.state != BreakerState::Closed || !shard.is_connected;
        let troubled: Vec<&ShardReport> = report.shards.iter().filter(is_troubled).collect();
        let is_away = report.shards.is_empty() || !troubled.is_empty() || !report.unserved.is_empty();
        let mut seen = self.seen();
        seen.has_other_secret = report.has_other_secret;
        seen.troubled = troubled.iter().map(|shard| described(shard)).take(NAMED_MAX).collect();
        let room = NAMED_MAX - seen.troubled.len();
        seen.troubled.extend(report.unserved.iter().take(room).map(unserved));
        match (seen.since, is_away) {
            (None, true) => {
                seen.since = Some(now);
                let shards = seen.troubled.join("; ");
                tracing::warn!(
                    place = self.place,
                    shards,
                    "the store does not serve: each limit decides by its on_store_failure"
                );
            }
            (Some(since), false) => {
                seen.since = None;
                let away = now.since(since);
                seen.outage = seen.outage + away;
                tracing::info!(place = self.place, seconds = away.ceil_seconds(), "the store serves again");
            }
            _ => {}
        }
    }

    /// All numbers for the metrics.
    pub(crate) fn numbers(&self, report: &Report, fallback: &FallbackReport, now: Timestamp) -> StoreMetrics {
        let seen = self.seen().clone();
        let outage = seen.since.map_or(seen.outage, |since| seen.outage + now.since(since));
        let mut count = 0;
        let mut buckets = Vec::with_capacity(LATENCY_BOUNDS.len());
        for (bound, calls) in LATENCY_BOUNDS.iter().zip(&report.latency) {
            count += calls;
            buckets.push((bound * 1_000, count));
        }
        count += report.latency.last().copied().unwrap_or(0);
        let sum = u64::try_from(report.latency_sum.as_nanos()).unwrap_or(u64::MAX);
        StoreMetrics {
            calls: report.calls,
            requests: report.decisions,
            latency: (buckets, count, sum),
            failures: report.failures.iter().map(|(class, count)| (class.name(), *count)).collect(),
            connected: report.connections,
            not_connected: report.connection_failures,
            corrections: report.corrections,
            deferred: fallback.deferred_held as u64,
            reconciled: [fallback.deferred_settled, fallback.deferred_dropped],
            open_seconds: fallback.open_for.as_micros() / 1_000_000,
            nodes: u64::from(report.nodes),
            outage_seconds: outage.as_micros() / 1_000_000,
            leases: LeaseReport::default(),
            limits: Vec::new(),
            slots_unserved: report.unserved.len() as u64,
            shards: report.shards.iter().map(shard).collect(),
        }
    }
}

/// Whether the fleet's secret is known and a shard is connected.
fn is_reached(service: &Service) -> bool {
    let fleet = service.engine.store().fleet();
    fleet.is_some_and(|fleet| {
        let redis = fleet.redis();
        redis.has_joined() && redis.report().shards.iter().any(|shard| shard.is_connected)
    })
}

/// Reads an unused counter, so that the store has the script before a caller would wait for it.
async fn greet(service: &Service) {
    let Ok(tally) = service.engine.ledger().tally("greeting", Ticks::from_secs(1), Align::Epoch) else {
        return;
    };
    for _ in 0..GREETINGS_MAX {
        if service.engine.ledger().add(&tally, &[], 0, service.now()).await.source == Source::Exact {
            return;
        }
    }
}

/// Reconciles deferred charges with the store, until all are sent or the store does not answer.
async fn settle(service: &Service) {
    settle_of(&service.engine, service).await;
    if let Some(capacity) = service.capacity() {
        settle_of(capacity, service).await;
    }
}

async fn settle_of(engine: &Engine<Stores>, service: &Service) {
    while let Ok(reconciled) = engine.maintenance().reconcile(service.now()).await {
        if reconciled.settled > 0 {
            tracing::debug!(
                settled = reconciled.settled,
                left = reconciled.left,
                "counters were put right in the store"
            );
        }
        if reconciled.settled == 0 || reconciled.left == 0 {
            return;
        }
    }
}

fn unserved(unserved: &UnservedSlot) -> String {
    let UnservedSlot { slot, class } = unserved;
    let how = match class {
        ReplyClass::NoConnection => "no node has it",
        _ => "it is half migrated, and no node answers for all of its keys",
    };
    format!("slot {slot}: {how} ({}); finish or undo that with `redis-cli --cluster fix`", class.name())
}

fn described(shard: &ShardReport) -> String {
    match &shard.last_error {
        Some(error) => format!("{}: {error}", shard.address),
        None => shard.address.clone(),
    }
}

fn shard(report: &ShardReport) -> ShardMetrics {
    ShardMetrics {
        address: report.address.clone(),
        state: match report.state {
            BreakerState::Closed => ShardState::Closed,
            BreakerState::Open => ShardState::Open,
            BreakerState::Probing => ShardState::Probing,
            BreakerState::Ramping => ShardState::Ramping,
        },
        opened: report.opened,
        in_flight: report.in_flight as u64,
        away_seconds: report.away_for.as_secs(),
    }
}
