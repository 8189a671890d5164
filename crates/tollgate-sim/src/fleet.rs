//! A fleet in virtual time: nodes that share one counter of each key, asked unevenly, and lost. What they admit together, how often they
//! ask the store, and what is stranded: exact, leased, and as if each counted for itself.

mod flow;

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

pub use flow::{Flow, Flowed, flow};

/// Bytes of each counter's memory, enough for every key of a simulation.
const BYTES: u64 = 16 << 20;
/// When it begins.
const START: Timestamp = Timestamp::from_unix_seconds(1_700_000_000);
/// How often a node tends its leases.
const TEND_EVERY: Ticks = Ticks::from_millis(5);

/// What is simulated.
#[derive(Clone, Debug)]
pub struct Scene {
    /// The limit of each key.
    pub quota: Quota,
    /// Nodes of the fleet.
    pub nodes: u32,
    /// Keys, of which the first is asked about as often as all others together.
    pub keys: u32,
    /// Requests a second, of the whole fleet.
    pub offered: u64,
    /// How long it goes on.
    pub time: Ticks,
    /// The share of a limit that a node may hold, in millionths, and for how long.
    pub lease: (u32, Ticks),
    /// The share of the load, in per cent, that goes to one node; which one it is changes halfway.
    pub skew: u32,
    /// Nodes that are killed and start anew, at even intervals.
    pub losses: u32,
    /// Whether nodes are cut off from the store for a while, one after the other.
    pub cuts: bool,
    /// What chance follows.
    pub seed: u64,
}

/// How a fleet counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Each request asks the store.
    Exact,
    /// Units are drawn ahead of time.
    Leased,
    /// Each node counts for itself, with the whole limit.
    Alone,
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Requests.
    pub asked: u64,
    /// Requests that passed, by the counters of the store.
    pub admitted: u64,
    /// Requests that passed while the store was out of reach, by a node's own share.
    pub apart: u64,
    /// The most that any key was admitted by the store's counters.
    pub most: u64,
    /// Calls to the store.
    pub calls: u64,
    /// Units that killed nodes held, and such as could not go back.
    pub stranded: u64,
    /// Requests that passed, of each node.
    pub by_node: Vec<u64>,
    /// The requests of each node.
    pub asked_by_node: Vec<u64>,
}

/// The way of one node to the store.
struct Link {
    store: MemoryLender,
    is_cut: Arc<AtomicBool>,
    calls: Arc<AtomicU64>,
}

impl Link {
    fn call(&self) -> Result<&MemoryLender, StoreFailure> {
        if self.is_cut.load(Ordering::Relaxed) {
            return Err(StoreFailure::Unreachable);
        }
        self.calls.fetch_add(1, Ordering::Relaxed);
        Ok(&self.store)
    }
}

impl Store for Link {
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

impl Lender for Link {
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

type Node = Engine<LeasedStore<Link>>;

/// Polls what never waits.
fn at_once<F: Future>(future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

struct Fleet<'s> {
    scene: &'s Scene,
    way: Way,
    store: MemoryLender,
    calls: Arc<AtomicU64>,
    nodes: Vec<(Node, Arc<AtomicBool>)>,
}

impl<'s> Fleet<'s> {
    fn new(scene: &'s Scene, way: Way) -> Result<Self, Findings> {
        let store = MemoryLender::new(MemoryStore::new(BYTES, START), scene.nodes);
        let mut fleet = Self { scene, way, store, calls: Arc::default(), nodes: Vec::new() };
        fleet.nodes = (0..scene.nodes).map(|_| fleet.node()).collect::<Result<_, _>>()?;
        Ok(fleet)
    }

    fn node(&self) -> Result<(Node, Arc<AtomicBool>), Findings> {
        let consistency = if self.way == Way::Leased { Consistency::Leased } else { Consistency::Exact };
        let (share, ttl) = self.scene.lease;
        let limit = Limit::new("limit", self.scene.quota.clone()).by(["key"]).consistency(consistency);
        let policy = Policy::new(vec![limit.cost(Cost::Asked).lease(share, ttl)])?;
        let store = match self.way {
            Way::Alone => MemoryLender::new(MemoryStore::new(BYTES, START), self.scene.nodes),
            _ => self.store.clone(),
        };
        let is_cut = Arc::new(AtomicBool::new(false));
        let link = Link { store, is_cut: Arc::clone(&is_cut), calls: Arc::clone(&self.calls) };
        let keys = usize::try_from(self.scene.keys).unwrap_or(usize::MAX);
        let engine =
            Engine::with_store(policy, LeasedStore::new(link, keys), Secret::repeatable(self.scene.seed));
        Ok((engine, is_cut))
    }
}

/// Runs a scene.
///
/// # Errors
/// The limit cannot be leased.
pub fn run(scene: &Scene, way: Way) -> Result<Outcome, Findings> {
    let mut random = Random::new(scene.seed);
    let mut fleet = Fleet::new(scene, way)?;
    let count = fleet.nodes.len().max(1);
    let mut outcome =
        Outcome { by_node: vec![0; count], asked_by_node: vec![0; count], ..Outcome::default() };
    let names: Vec<String> = (0..scene.keys.max(1)).map(|key| format!("key {key}")).collect();
    let mut admitted = vec![0u64; names.len()];
    let gap = (1_000_000 / scene.offered.max(1)).max(1);
    let (end, halfway) = (START + scene.time, START + Ticks::from_micros(scene.time.as_micros() / 2));
    let (mut now, mut tended, mut lost) = (START, START, 0u32);
    loop {
        now = now + Ticks::from_micros(random.exponential(gap).max(1));
        if now >= end {
            break;
        }
        // Nodes are lost at even intervals, and what they held with them.
        let due = u128::from(now.since(START).as_micros()) * u128::from(scene.losses + 1)
            / u128::from(scene.time.as_micros().max(1));
        if due > u128::from(lost) {
            let place = usize::try_from(random.below(count as u64)).unwrap_or(0);
            outcome.stranded += fleet.nodes[place].0.store().report().held;
            fleet.nodes[place] = fleet.node()?;
            lost += 1;
        }
        if scene.cuts {
            // Each second another one is out of reach for a part of it.
            let second = now.since(START).as_micros() / 1_000_000;
            let is_late = now.since(START).as_micros() % 1_000_000 > 600_000;
            for (place, (_, is_cut)) in fleet.nodes.iter().enumerate() {
                is_cut.store(is_late && second % count as u64 == place as u64, Ordering::Relaxed);
            }
        }
        if now.since(tended) >= TEND_EVERY {
            for (node, _) in &fleet.nodes {
                let _ = at_once(node.store().maintain(now));
            }
            tended = now;
        }
        let favourite = usize::from(now >= halfway) % count;
        let place = if random.below(100) < u64::from(scene.skew) {
            favourite
        } else {
            usize::try_from(random.below(count as u64)).unwrap_or(0)
        };
        let key = if random.below(2) == 0 { 0 } else { random.below(names.len() as u64) };
        let key = usize::try_from(key).unwrap_or(0);
        let Ok(request) = CheckRequest::new().with("key", names[key].as_str()) else { continue };
        outcome.asked += 1;
        outcome.asked_by_node[place] += 1;
        let Some(decision) = at_once(fleet.nodes[place].0.check(&request, now)) else { continue };
        if !decision.is_allowed() {
            continue;
        }
        outcome.by_node[place] += 1;
        let is_counted =
            decision.limits().all(|status| matches!(status.source, Source::Exact | Source::Lease));
        if is_counted {
            outcome.admitted += 1;
            admitted[key] += 1;
        } else {
            outcome.apart += 1;
        }
    }
    outcome.most = admitted.into_iter().max().unwrap_or(0);
    outcome.calls = fleet.calls.load(Ordering::Relaxed);
    outcome.stranded += fleet.nodes.iter().map(|(node, _)| node.store().report().stranded).sum::<u64>();
    Ok(outcome)
}
