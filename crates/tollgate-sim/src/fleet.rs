//! A fleet in virtual time: nodes that share one counter per key, get uneven load, and are killed or cut off.
//!
//! It measures what the nodes admit together, how often they call the store and how many units are stranded, in three
//! modes: exact, leased, and with a separate counter on each node.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use tollgate::lease::{LeaseRequest, LeasedStore, Lender, Loan, Loans, MemoryLender};
use tollgate::policy::{Consistency, Cost, Findings, Limit, Policy};
use tollgate::store::{Answers, Charge, Hold, Store, StoreFailure};
use tollgate::{CheckRequest, Engine, MemoryStore, Quota, Secret, Source, Ticks, Timestamp};

use crate::random::Random;

/// Bytes of each counter's memory, enough for every key of a simulation.
const BYTES: u64 = 16 << 20;
/// The start of every simulation.
const START: Timestamp = Timestamp::from_unix_seconds(1_700_000_000);
/// How often a node maintains its leases.
const MAINTAIN_EVERY: Ticks = Ticks::from_millis(5);

/// A fleet, its load and its failures.
#[derive(Clone, Debug)]
pub struct FleetScenario {
    /// The limit of each key.
    pub quota: Quota,
    /// Number of nodes.
    pub nodes: u32,
    /// Number of keys. Half of the requests name the first key.
    pub keys: u32,
    /// Requests a second to the whole fleet.
    pub offered: u64,
    /// Length of the simulation.
    pub time: Ticks,
    /// The share of a limit that a node may hold, in millionths, and for how long.
    pub lease: (u32, Ticks),
    /// The share of the load, in per cent, that goes to one node. Halfway through, another node takes it over.
    pub skew: u32,
    /// Number of nodes that are killed and restarted, at even intervals.
    pub losses: u32,
    /// Whether nodes lose the store for a while, one after the other.
    pub cuts: bool,
    /// Seed of the random numbers.
    pub seed: u64,
}

/// Where a fleet counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CountingMode {
    /// In the store, with one call for each request.
    Exact,
    /// In the store, with leases that nodes acquire ahead of their requests.
    Leased,
    /// On each node separately, with the whole limit.
    Separate,
}

/// The units that a fleet admitted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FleetOutcome {
    /// Requests.
    pub asked: u64,
    /// Requests admitted by the counters of the store.
    pub admitted: u64,
    /// Requests admitted by a node's own share while the store was unreachable.
    pub local: u64,
    /// Requests of the busiest key admitted by the counters of the store.
    pub most: u64,
    /// Calls to the store.
    pub calls: u64,
    /// Units held by killed nodes, and units that a node could not return.
    pub stranded: u64,
    /// Requests that each node admitted.
    pub by_node: Vec<u64>,
    /// Requests sent to each node.
    pub asked_by_node: Vec<u64>,
}

/// The store as one node reaches it: calls are counted, and fail while the node is cut off.
struct NodeStore {
    store: MemoryLender,
    is_cut: Arc<AtomicBool>,
    calls: Arc<AtomicU64>,
}

impl NodeStore {
    fn call(&self) -> Result<&MemoryLender, StoreFailure> {
        if self.is_cut.load(Ordering::Relaxed) {
            return Err(StoreFailure::Unreachable);
        }
        self.calls.fetch_add(1, Ordering::Relaxed);
        Ok(&self.store)
    }
}

impl Store for NodeStore {
    async fn charge(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<Answers, StoreFailure> {
        self.call()?.charge(charges, now).await
    }

    async fn refund(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<(), StoreFailure> {
        self.call()?.refund(charges, now).await
    }

    async fn renew(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<(), StoreFailure> {
        self.call()?.renew(charges, now).await
    }

    async fn reset(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<(), StoreFailure> {
        self.call()?.reset(charges, now).await
    }

    fn hold(&self, hold: &Hold) {
        self.store.hold(hold);
    }

    fn nodes(&self) -> u32 {
        self.store.nodes()
    }
}

impl Lender for NodeStore {
    type Receipt = <MemoryLender as Lender>::Receipt;

    async fn lend(
        &self,
        charges: &[Charge<'_>],
        wants: &[LeaseRequest],
        now: Timestamp,
    ) -> Result<Loans<Self::Receipt>, StoreFailure> {
        self.call()?.lend(charges, wants, now).await
    }

    fn quota_of<'r>(&self, receipt: &'r Self::Receipt) -> &'r Quota {
        self.store.quota_of(receipt)
    }

    async fn lend_more(
        &self,
        receipt: &Self::Receipt,
        want: LeaseRequest,
        now: Timestamp,
    ) -> Result<Loan<Self::Receipt>, StoreFailure> {
        self.call()?.lend_more(receipt, want, now).await
    }

    async fn return_units(
        &self,
        receipt: &Self::Receipt,
        units: u64,
        acquired_at: Timestamp,
        now: Timestamp,
    ) -> Result<(), StoreFailure> {
        self.call()?.return_units(receipt, units, acquired_at, now).await
    }
}

type Node = Engine<LeasedStore<NodeStore>>;

/// Polls a future once. Futures of a store in memory never wait.
fn poll_ready<F: Future>(future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

struct Fleet<'s> {
    scenario: &'s FleetScenario,
    mode: CountingMode,
    store: MemoryLender,
    calls: Arc<AtomicU64>,
    nodes: Vec<(Node, Arc<AtomicBool>)>,
}

impl<'s> Fleet<'s> {
    fn new(scenario: &'s FleetScenario, mode: CountingMode) -> Result<Self, Findings> {
        let store = MemoryLender::new(MemoryStore::new(BYTES, START), scenario.nodes);
        let mut fleet = Self { scenario, mode, store, calls: Arc::default(), nodes: Vec::new() };
        fleet.nodes = (0..scenario.nodes).map(|_| fleet.node()).collect::<Result<_, _>>()?;
        Ok(fleet)
    }

    fn node(&self) -> Result<(Node, Arc<AtomicBool>), Findings> {
        let consistency =
            if self.mode == CountingMode::Leased { Consistency::Leased } else { Consistency::Exact };
        let (share, ttl) = self.scenario.lease;
        let limit = Limit::new("limit", self.scenario.quota.clone()).by(["key"]).consistency(consistency);
        let policy = Policy::new(vec![limit.cost(Cost::Asked).lease(share, ttl)])?;
        let store = match self.mode {
            CountingMode::Separate => MemoryLender::new(MemoryStore::new(BYTES, START), self.scenario.nodes),
            _ => self.store.clone(),
        };
        let is_cut = Arc::new(AtomicBool::new(false));
        let node_store = NodeStore { store, is_cut: Arc::clone(&is_cut), calls: Arc::clone(&self.calls) };
        let keys = usize::try_from(self.scenario.keys).unwrap_or(usize::MAX);
        let engine = Engine::builder()
            .policy(policy)
            .store(LeasedStore::new(node_store, keys))
            .secret(Secret::repeatable(self.scenario.seed))
            .build();
        Ok((engine, is_cut))
    }
}

/// Runs a scenario in one mode.
///
/// # Errors
/// The limit cannot be leased.
pub fn run(scenario: &FleetScenario, mode: CountingMode) -> Result<FleetOutcome, Findings> {
    let mut random = Random::new(scenario.seed);
    let mut fleet = Fleet::new(scenario, mode)?;
    let count = fleet.nodes.len().max(1);
    let mut outcome =
        FleetOutcome { by_node: vec![0; count], asked_by_node: vec![0; count], ..FleetOutcome::default() };
    let names: Vec<String> = (0..scenario.keys.max(1)).map(|key| format!("key {key}")).collect();
    let mut admitted = vec![0u64; names.len()];
    let gap = (1_000_000 / scenario.offered.max(1)).max(1);
    let (end, halfway) = (START + scenario.time, START + Ticks::from_micros(scenario.time.as_micros() / 2));
    let (mut now, mut maintained, mut lost) = (START, START, 0u32);
    loop {
        now = now + Ticks::from_micros(random.exponential(gap).max(1));
        if now >= end {
            break;
        }
        // A killed node loses the units that it holds.
        let due = u128::from(now.since(START).as_micros()) * u128::from(scenario.losses + 1)
            / u128::from(scenario.time.as_micros().max(1));
        if due > u128::from(lost) {
            let node = usize::try_from(random.below(count as u64)).unwrap_or(0);
            outcome.stranded += fleet.nodes[node].0.store().report().held;
            fleet.nodes[node] = fleet.node()?;
            lost += 1;
        }
        if scenario.cuts {
            // In the last 400 ms of each second, one node is cut off, each second another one.
            let second = now.since(START).as_micros() / 1_000_000;
            let is_late = now.since(START).as_micros() % 1_000_000 > 600_000;
            for (node, (_, is_cut)) in fleet.nodes.iter().enumerate() {
                is_cut.store(is_late && second % count as u64 == node as u64, Ordering::Relaxed);
            }
        }
        if now.since(maintained) >= MAINTAIN_EVERY {
            for (node, _) in &fleet.nodes {
                let _ = poll_ready(node.store().maintain(now));
            }
            maintained = now;
        }
        let favourite = usize::from(now >= halfway) % count;
        let node = if random.below(100) < u64::from(scenario.skew) {
            favourite
        } else {
            usize::try_from(random.below(count as u64)).unwrap_or(0)
        };
        let key = if random.below(2) == 0 { 0 } else { random.below(names.len() as u64) };
        let key = usize::try_from(key).unwrap_or(0);
        let Ok(request) = CheckRequest::new().with("key", names[key].as_str()) else { continue };
        outcome.asked += 1;
        outcome.asked_by_node[node] += 1;
        let Some(decision) = poll_ready(fleet.nodes[node].0.check(&request, now)) else { continue };
        if !decision.is_allowed() {
            continue;
        }
        outcome.by_node[node] += 1;
        let is_counted =
            decision.limits().all(|status| matches!(status.source, Source::Exact | Source::Lease));
        if is_counted {
            outcome.admitted += 1;
            admitted[key] += 1;
        } else {
            outcome.local += 1;
        }
    }
    outcome.most = admitted.into_iter().max().unwrap_or(0);
    outcome.calls = fleet.calls.load(Ordering::Relaxed);
    outcome.stranded += fleet.nodes.iter().map(|(node, _)| node.store().report().stranded).sum::<u64>();
    Ok(outcome)
}

#[cfg(test)]
mod shares;
