//! The units that a fleet with leases from a real store admits and keeps, counted in every interval: reservations are settled late, in part or
//! never, units are given back by attributes and age, and leases end and go back meanwhile. Each call to the store carries the time.

use tokio::runtime::Runtime;
use tollgate::algorithm::fixed_window::Align;
use tollgate::algorithm::sliding_window::Estimate;
use tollgate::lease::LeasedStore;
use tollgate::policy::{Consistency, Cost, Limit, Policy};
use tollgate::{CheckRequest, Engine, Quota, Rate, Reservation, Ticks, Timestamp};
use tollgate_redis::{Nodes, RedisStore};

use crate::cluster::Cluster;
use crate::server::{Program, Server};
use crate::store::{new_runtime, secret, settings};
use tollgate_testkit::until;

const START: Timestamp = Timestamp::from_unix_seconds(1_700_000_000);
const PERIOD: Ticks = Ticks::from_secs(2);
const UNITS: u64 = 60;
/// Longer than anything is counted, so that late settlements are tried.
const LIFETIME: Ticks = Ticks::from_secs(60);
const NODES: u64 = 3;
/// Traces of each algorithm. A seed that ever failed stays here.
const SEEDS: [u64; 3] = [1, 2, 5];
const STEPS: usize = 900;

type Node = Engine<LeasedStore<RedisStore>>;

/// Units that passed and were kept, and what all nodes held right before.
struct Kept {
    at: Timestamp,
    units: u64,
    held: u64,
}

struct Trace<'r> {
    runtime: &'r Runtime,
    nodes: Vec<Node>,
    now: Timestamp,
    seed: u64,
    kept: Vec<Kept>,
    open: Vec<(usize, Reservation, usize)>,
    refunded: u64,
}

fn asking(cost: u64) -> CheckRequest<'static> {
    CheckRequest::new().with("key", "k").unwrap().cost(cost).unwrap()
}

impl<'r> Trace<'r> {
    /// A fleet with a limit of this name, which keeps its counters apart from those of other traces.
    fn new(runtime: &'r Runtime, url: &str, name: &str, quota: &Quota, seed: u64) -> Self {
        let _inside = runtime.enter();
        let node = |_| {
            let settings = settings(url).long_deadline().injected_time().nodes(Nodes::Fixed(3)).unwrap();
            let limit = Limit::new(name, quota.clone()).by(["key"]).cost(Cost::Asked);
            let limit = limit.consistency(Consistency::Leased).lease(50_000, Ticks::from_millis(250));
            let store = LeasedStore::new(RedisStore::start(settings).unwrap(), 1_000);
            Engine::builder().policy(Policy::new(vec![limit]).unwrap()).store(store).secret(secret()).build()
        };
        let nodes: Vec<Node> = (0..NODES).map(node).collect();
        for node in &nodes {
            until("the store is connected", || node.store().store().is_prepared().then_some(()));
        }
        Self { runtime, nodes, now: START, seed, kept: Vec::new(), open: Vec::new(), refunded: 0 }
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        (self.seed >> 8) % bound.max(1)
    }

    fn any(&mut self, length: usize) -> usize {
        usize::try_from(self.below(length as u64)).unwrap()
    }

    fn held(&self) -> u64 {
        self.nodes.iter().map(|node| node.store().report().held).sum()
    }

    fn reserve(&mut self) {
        let (node, cost) = (self.any(3), 1 + self.below(2));
        let held = self.held();
        let request = asking(cost);
        let reserved = self.nodes[node].reservations().reserve(&request, LIFETIME, self.now);
        if let (_, Some(reservation)) = self.runtime.block_on(reserved) {
            self.open.push((node, reservation, self.kept.len()));
            self.kept.push(Kept { at: self.now, units: cost, held });
        }
    }

    /// Cancels a reservation, or commits it at a part.
    fn settle(&mut self) {
        if self.open.is_empty() {
            return;
        }
        let place = self.any(self.open.len());
        let (node, mut reservation, entry) = self.open.swap_remove(place);
        let actual = self.below(self.kept[entry].units);
        let node = &self.nodes[node];
        let settled = self.runtime.block_on(async {
            match actual {
                0 => node.reservations().cancel(&mut reservation, self.now).await,
                actual => node.reservations().commit(&mut reservation, actual, self.now).await,
            }
        });
        self.refunded += settled.unwrap().refunded;
        self.kept[entry].units = actual;
    }

    /// Gives back what passed by attributes and an age: at another node than the one that it passed at.
    fn refund(&mut self) {
        if self.open.is_empty() {
            return;
        }
        let place = self.any(self.open.len());
        let (node, _reservation, entry) = self.open.swap_remove(place);
        let units = std::mem::take(&mut self.kept[entry].units);
        let within = self.now.since(self.kept[entry].at);
        let request = asking(units);
        let refunded = self.nodes[(node + 1) % 3].ledger().refund(&request, &[], within, self.now);
        self.runtime.block_on(refunded).unwrap();
    }

    fn pass(&mut self, most: u64) {
        self.now = self.now + Ticks::from_micros(1 + self.below(most));
        self.runtime.block_on(async {
            for node in &self.nodes {
                node.store().maintain(self.now).await;
            }
        });
    }

    /// The most by which an interval that begins with an admission exceeds what the quota gives and what was held then, in
    /// units × ticks: an interval of any length for a bucket, of a window's length for a sliding window. In a fixed window units
    /// end with it, so nothing that was held before counts.
    fn most_above(&self, quota: &Quota) -> i128 {
        let (units, period) = (i128::from(UNITS), i128::from(PERIOD.as_micros()));
        let window = |at: Timestamp| at.unix_micros() / PERIOD.as_micros();
        let mut most = i128::MIN;
        for (first, from) in self.kept.iter().enumerate() {
            let (mut sum, is_window) = (0, matches!(quota, Quota::FixedWindow(_)));
            let held = if is_window { 0 } else { i128::from(from.held) };
            for to in &self.kept[first..] {
                let passed = i128::from(to.at.since(from.at).as_micros());
                let gained = match quota {
                    Quota::TokenBucket(_) | Quota::Gcra(_) => units * passed,
                    Quota::FixedWindow(_) if window(to.at) == window(from.at) => 0,
                    Quota::SlidingWindow(_) if passed < period => 0,
                    _ => break,
                };
                sum += i128::from(to.units);
                most = most.max((sum - units - held) * period - gained);
            }
        }
        most
    }
}

fn quotas() -> [Quota; 5] {
    let rate = Rate::per_ticks(UNITS, PERIOD);
    let quotas = [
        Quota::token_bucket(rate),
        Quota::gcra(rate),
        Quota::fixed_window(rate, Align::Epoch),
        Quota::sliding_window(rate, 10, Estimate::Strict),
        Quota::sliding_window(rate, 1, Estimate::Strict),
    ];
    quotas.map(Result::unwrap)
}

fn no_interval_keeps_more(url: &str) {
    let (runtime, mut returned_in_all) = (new_runtime(), 0);
    for (place, quota) in quotas().into_iter().enumerate() {
        for seed in SEEDS {
            let name = format!("{}, quota {place}, seed {seed}", quota.algorithm());
            let mut trace = Trace::new(&runtime, url, &name, &quota, seed);
            for _ in 0..STEPS {
                match trace.below(9) {
                    0..4 => trace.reserve(),
                    4 | 5 => trace.settle(),
                    6 => trace.refund(),
                    7 => trace.pass(1),
                    _ if trace.below(20) == 0 => trace.pass(900_000),
                    _ => trace.pass(60_000),
                }
            }
            let reports: Vec<_> = trace.nodes.iter().map(|node| node.store().report()).collect();
            let (drawn, returned) = reports.iter().fold((0, 0), |(drawn, returned), report| {
                (drawn + report.acquired, returned + report.returned)
            });
            returned_in_all += returned;
            assert!(drawn > 20, "{name}: {drawn} drawn");
            assert!(trace.refunded > 20, "{name}: {} refunded", trace.refunded);
            assert!(trace.most_above(&quota) <= 0, "{name}: {}", trace.most_above(&quota));
        }
    }
    assert!(returned_in_all > 0, "leases ended and went back");
}

/// Whatever a fleet draws, returns, settles and gives back: no interval keeps more than the definition gives it and what was held
/// when it began.
#[test]
fn no_interval_of_a_leasing_fleet_keeps_more_than_its_bound() {
    let server = Server::redis();
    no_interval_keeps_more(&server.url());
}

/// The same on a cluster.
#[test]
fn no_interval_of_a_leasing_fleet_on_a_cluster_keeps_more_than_its_bound() {
    let cluster = Cluster::calm(Program::Redis);
    no_interval_keeps_more(&cluster.url());
}
