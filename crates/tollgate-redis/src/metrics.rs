//! What the client has done, in plain numbers that a server can show. Counters only grow; gauges say how it is now.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::breaker::BreakerState;
use crate::reply::ReplyClass;

/// Upper bounds of the latency histogram, in microseconds; what is above the last is counted apart.
pub const LATENCY_BOUNDS: [u64; 14] =
    [50, 100, 200, 300, 500, 750, 1_000, 1_500, 2_000, 3_000, 5_000, 10_000, 25_000, 50_000];

/// How long a slot that no node answered for is reported.
const UNSERVED_FOR: Duration = Duration::from_secs(10);
/// Most slots of which that is remembered.
const UNSERVED_MAX: usize = 64;
const BUCKETS: usize = LATENCY_BOUNDS.len() + 1;

/// How the store was, and is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Script calls that were sent.
    pub calls: u64,
    /// Those of them that decided more than one request.
    pub batches: u64,
    /// Requests that they decided.
    pub decisions: u64,
    /// Calls by how long they took, each bucket for itself; its bounds are [`LATENCY_BOUNDS`], the last has none.
    pub latency: [u64; BUCKETS],
    /// The time that all of them took together.
    pub latency_sum: Duration,
    /// Calls that were not answered, and requests that were not sent, by class. Redirections that were followed are counted too.
    pub failures: Vec<(ReplyClass, u64)>,
    /// Requests that were not sent because too many were under way.
    pub shed: u64,
    /// Connections that were made.
    pub connections: u64,
    /// Connections that could not be made.
    pub connection_failures: u64,
    /// Refunds and other corrections that wait to be sent.
    pub corrections: u64,
    /// Nodes that share the store.
    pub nodes: u32,
    /// Every primary that is known.
    pub shards: Vec<ShardReport>,
    /// Slots of a cluster that no node answered for of late, in their order: half migrated, or nobody's.
    pub unserved: Vec<UnservedSlot>,
}

/// A slot of a cluster that no node answers for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnservedSlot {
    /// Its number.
    pub slot: u16,
    /// What was heard instead of an answer.
    pub class: ReplyClass,
}

/// How one primary is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardReport {
    /// Its host and port.
    pub address: String,
    /// Whether requests go to it.
    pub state: BreakerState,
    /// How often its breaker opened.
    pub opened: u64,
    /// Whether there is a connection to it.
    pub is_connected: bool,
    /// Requests that are under way, or wait to be.
    pub in_flight: usize,
    /// How long it has been failing.
    pub away_for: Duration,
    /// Why it could not be reached, the last time that it could not.
    pub last_error: Option<String>,
}

/// All orderings are relaxed: each number is read for itself.
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
    /// Slots that no node answered for, and when that was last so. Locked when that happens, and for a report.
    unserved: Mutex<BTreeMap<u16, (Instant, ReplyClass)>>,
}

impl Metrics {
    /// A call with so many requests was sent.
    pub(crate) fn record_call(&self, requests: usize) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.batches.fetch_add(u64::from(requests > 1), Ordering::Relaxed);
        self.decisions.fetch_add(requests as u64, Ordering::Relaxed);
    }

    /// Calls came back after so long.
    pub(crate) fn record_latency(&self, time: Duration, calls: usize) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let bucket = LATENCY_BOUNDS.partition_point(|&bound| bound < micros);
        self.latency[bucket].fetch_add(calls as u64, Ordering::Relaxed);
        self.latency_micros.fetch_add(micros.saturating_mul(calls as u64), Ordering::Relaxed);
    }

    pub(crate) fn record_failure(&self, class: ReplyClass) {
        self.failures[class as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// No node answered for a slot: each sends to another, or says to try again.
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
        }
    }
}
