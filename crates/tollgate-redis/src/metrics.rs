//! Counters and gauges of the client, as plain numbers.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::breaker::BreakerState;
use crate::reply::ReplyClass;

/// Upper bounds of the latency histogram, in microseconds. A last bucket counts what is above them.
pub const LATENCY_BOUNDS: [u64; 14] =
    [50, 100, 200, 300, 500, 750, 1_000, 1_500, 2_000, 3_000, 5_000, 10_000, 25_000, 50_000];

/// How long an unserved slot is reported.
const UNSERVED_FOR: Duration = Duration::from_secs(10);
/// Maximum number of unserved slots remembered.
const UNSERVED_MAX: usize = 64;
const BUCKETS: usize = LATENCY_BOUNDS.len() + 1;

/// The state and the counters of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Script calls sent.
    pub calls: u64,
    /// Calls that decided more than one request.
    pub batches: u64,
    /// Requests decided.
    pub decisions: u64,
    /// Calls by latency, not cumulative. The bounds are [`LATENCY_BOUNDS`]; the last bucket has none.
    pub latency: [u64; BUCKETS],
    /// The sum of all latencies.
    pub latency_sum: Duration,
    /// Unanswered calls and unsent requests by class, followed redirections included.
    pub failures: Vec<(ReplyClass, u64)>,
    /// Requests that were shed because too many were in flight.
    pub shed: u64,
    /// Connections made.
    pub connections: u64,
    /// Failed attempts to connect.
    pub connection_failures: u64,
    /// Refunds and other corrections waiting to be sent.
    pub corrections: u64,
    /// Nodes that share the store.
    pub nodes: u32,
    /// Every known primary.
    pub shards: Vec<ShardReport>,
    /// Slots that no node served recently, in order: half migrated, or without an owner.
    pub unserved: Vec<UnservedSlot>,
    /// Whether the store has another secret than this node, which therefore shares no counters.
    pub has_other_secret: bool,
}

/// A cluster slot that no node serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnservedSlot {
    /// Its number.
    pub slot: u16,
    /// The class of the last failure.
    pub class: ReplyClass,
}

/// The state of one primary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardReport {
    /// Its host and port.
    pub address: String,
    /// The state of its breaker.
    pub state: BreakerState,
    /// How often its breaker opened.
    pub opened: u64,
    /// Whether it is connected.
    pub is_connected: bool,
    /// Requests in flight or queued.
    pub in_flight: usize,
    /// How long it has been failing.
    pub away_for: Duration,
    /// The last error.
    pub last_error: Option<String>,
}

/// All orderings are relaxed: each number is independent.
#[derive(Default)]
pub(crate) struct Metrics {
    calls: AtomicU64,
    batches: AtomicU64,
    decisions: AtomicU64,
    latency: [AtomicU64; BUCKETS],
    latency_micros: AtomicU64,
    failures: [AtomicU64; ReplyClass::ALL.len()],
    connections: AtomicU64,
    connection_failures: AtomicU64,
    /// Slots that no node served, with the time and class of the last failure. Locked on such a failure and for a
    /// report.
    unserved: Mutex<BTreeMap<u16, (Instant, ReplyClass)>>,
}

impl Metrics {
    /// Records a call with this many requests.
    pub(crate) fn record_call(&self, requests: usize) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.batches.fetch_add(u64::from(requests > 1), Ordering::Relaxed);
        self.decisions.fetch_add(requests as u64, Ordering::Relaxed);
    }

    /// Records the latency of a batch of calls.
    pub(crate) fn record_latency(&self, time: Duration, calls: usize) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let bucket = LATENCY_BOUNDS.partition_point(|&bound| bound < micros);
        self.latency[bucket].fetch_add(calls as u64, Ordering::Relaxed);
        self.latency_micros.fetch_add(micros.saturating_mul(calls as u64), Ordering::Relaxed);
    }

    pub(crate) fn record_failure(&self, class: ReplyClass) {
        self.failures[class as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Records that no node served a slot: they redirect to each other, or answer TRYAGAIN.
    pub(crate) fn record_unserved(&self, slot: u16, class: ReplyClass, now: Instant) {
        let mut unserved = self.unserved.lock().unwrap_or_else(PoisonError::into_inner);
        if unserved.len() < UNSERVED_MAX || unserved.contains_key(&slot) {
            unserved.insert(slot, (now, class));
        }
    }

    fn recently_unserved(&self, now: Instant) -> Vec<UnservedSlot> {
        let mut unserved = self.unserved.lock().unwrap_or_else(PoisonError::into_inner);
        unserved.retain(|_, (at, _)| now.saturating_duration_since(*at) < UNSERVED_FOR);
        unserved.iter().map(|(&slot, &(_, class))| UnservedSlot { slot, class }).collect()
    }

    pub(crate) fn record_connected(&self) {
        self.connections.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn record_connect_failure(&self) {
        self.connection_failures.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn report(&self, shards: Vec<ShardReport>, nodes: u32, corrections: u64) -> Report {
        let read = |number: &AtomicU64| number.load(Ordering::Relaxed);
        Report {
            calls: read(&self.calls),
            batches: read(&self.batches),
            decisions: read(&self.decisions),
            latency: std::array::from_fn(|bucket| read(&self.latency[bucket])),
            latency_sum: Duration::from_micros(read(&self.latency_micros)),
            failures: ReplyClass::ALL
                .iter()
                .map(|&class| (class, read(&self.failures[class as usize])))
                .collect(),
            shed: read(&self.failures[ReplyClass::Shed as usize]),
            connections: read(&self.connections),
            connection_failures: read(&self.connection_failures),
            corrections,
            nodes,
            shards,
            unserved: self.recently_unserved(Instant::now()),
            has_other_secret: false,
        }
    }
}
