//! Nodes that lease from counters in a real store: together they admit at most what the counter holds, and nearly all
//! of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::runtime::Runtime;
use tollgate::algorithm::fixed_window::Align;
use tollgate::algorithm::sliding_window::Estimate;
use tollgate::lease::{LeaseReport, LeasedStore, MemoryLender};
use tollgate::policy::{Consistency, Limit, Policy};
use tollgate::{CheckRequest, Clock, Engine, MemoryStore, Quota, Rate, Source, Ticks};
use tollgate_redis::{Nodes, RedisStore};

use crate::cluster::Cluster;
use crate::server::{Program, Server};
use crate::store::{new_runtime, secret, settings};
use tollgate_testkit::until;

type Node = Engine<LeasedStore<RedisStore>>;

struct Fleet {
    runtime: Runtime,
    nodes: Vec<Arc<Node>>,
    clock: Clock,
}

impl Fleet {
    /// Nodes with the same limit, which maintain their leases.
    fn new(url: &str, count: usize, quota: &Quota) -> Self {
        let runtime = new_runtime();
        let clock = Clock::precise();
        let inside = runtime.enter();
        let nodes: Vec<Arc<Node>> = (0..count).map(|_| Arc::new(node(url, quota))).collect();
        drop(inside);
        let fleet = Self { runtime, nodes, clock };
        for node in &fleet.nodes {
            until("the store answers", || fleet.ask(node, "warm").1.then_some(()));
            let (node, clock) = (Arc::clone(node), fleet.clock.clone());
            fleet.runtime.spawn(async move {
                loop {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    node.store().maintain(clock.now()).await;
                }
            });
        }
        fleet
    }

    /// Whether the request is admitted, and whether the store was asked.
    fn ask(&self, node: &Node, key: &str) -> (bool, bool) {
        self.runtime.block_on(ask(node, key, &self.clock))
    }

    /// All nodes send concurrent requests for a while. Returns how many were admitted and how many asked the store.
    fn send_load(&self, key: &str, time: Duration) -> (u64, u64, u64) {
        let end = tokio::time::Instant::now() + time;
        let (passed, asked) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let calls = || self.nodes.iter().map(|node| node.store().store().report().calls).sum::<u64>();
        let before = calls();
        let tasks: Vec<_> = self
            .nodes
            .iter()
            .flat_map(|node| (0..8).map(move |_| Arc::clone(node)))
            .map(|node| {
                let (passed, asked, key) = (Arc::clone(&passed), Arc::clone(&asked), key.to_owned());
                let clock = self.clock.clone();
                self.runtime.spawn(async move {
                    while tokio::time::Instant::now() < end {
                        let (is_allowed, _) = ask(&node, &key, &clock).await;
                        passed.fetch_add(u64::from(is_allowed), Ordering::Relaxed);
                        asked.fetch_add(1, Ordering::Relaxed);
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                })
            })
            .collect();
        tasks.into_iter().for_each(|task| self.runtime.block_on(task).unwrap());
        (passed.load(Ordering::Relaxed), asked.load(Ordering::Relaxed), calls() - before)
    }

    fn held(&self) -> u64 {
        self.nodes.iter().map(|node| node.store().report().held).sum()
    }
}

async fn ask(node: &Node, key: &str, clock: &Clock) -> (bool, bool) {
    let request = CheckRequest::new().with("key", key).unwrap();
    let decision = node.check(&request, clock.now()).await;
    let source = decision.limits().next().unwrap().source;
    (decision.is_allowed(), matches!(source, Source::Exact | Source::Lease | Source::DenyCache))
}

fn node(url: &str, quota: &Quota) -> Node {
    let limit = Limit::new("limit", quota.clone()).by(["key"]).consistency(Consistency::Leased);
    let policy = Policy::new(vec![limit.lease(50_000, Ticks::from_millis(250))]).unwrap();
    let store = RedisStore::start(settings(url).long_deadline().nodes(Nodes::Fixed(3)).unwrap()).unwrap();
    Engine::builder().policy(policy).store(LeasedStore::new(store, 10_000)).secret(secret()).build()
}

/// Without a refill exactly the capacity is admitted, although most requests do not ask the store.
#[test]
fn a_fleet_admits_no_more_than_the_capacity() {
    let server = Server::redis();
    let quotas = [
        Quota::token_bucket(Rate::per_day(50).burst(3_000)).unwrap(),
        Quota::gcra(Rate::per_day(50).burst(3_000)).unwrap(),
        Quota::fixed_window(Rate::per_day(3_000), Align::FirstHit).unwrap(),
        Quota::sliding_window(Rate::per_day(3_000), 10, Estimate::Strict).unwrap(),
    ];
    for quota in &quotas {
        server.ask::<()>(&["FLUSHALL"]).unwrap();
        let fleet = Fleet::new(&server.url(), 3, quota);
        let mut passed = 0;
        let mut seen = (0, 0);
        // Until no request is admitted any more, with pauses in which leases are returned.
        for _ in 0..40 {
            let (more, asked, calls) = fleet.send_load("k", Duration::from_millis(400));
            passed += more;
            seen = (seen.0 + asked, seen.1 + calls);
            until("what is held goes back", || (fleet.held() == 0).then_some(()));
            if more == 0 {
                break;
            }
        }
        // A reply that comes after its deadline loses the units that it lent until they expire.
        assert!((2_900..=3_000).contains(&passed), "{}: {passed}", quota.algorithm());
        assert!(seen.1 * 2 < seen.0, "{}: {} calls for {} requests", quota.algorithm(), seen.1, seen.0);
    }
}

/// An overloaded fleet uses the whole quota and no more, mostly without asking the store.
#[test]
fn busy_fleet_uses_nearly_the_whole_quota() {
    let cluster = Cluster::calm(Program::Redis);
    let quota = Quota::token_bucket(Rate::per_second(1_000).burst(500)).unwrap();
    let fleet = Fleet::new(&cluster.url(), 3, &quota);
    fleet.send_load("k", Duration::from_millis(1_000));
    let began = tokio::time::Instant::now();
    let (passed, asked, calls) = fleet.send_load("k", Duration::from_secs(3));
    let seconds = began.elapsed().as_secs_f64();
    // The initial burst, and what was refilled since.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a few thousand")]
    let most = (seconds * 1_000.0).ceil() as u64 + 500;
    assert!(passed <= most, "{passed} of {most}");
    assert!(passed > 2_500, "{passed} of {most}");
    assert!(calls * 2 < asked, "{calls} calls for {asked} requests");
}

/// Units of an ended window are not returned to the next one.
#[test]
fn units_do_not_return_to_another_window() {
    let server = Server::redis();
    let quota = Quota::fixed_window(Rate::per_second(200), Align::Epoch).unwrap();
    let fleet = Fleet::new(&server.url(), 3, &quota);
    let stopped = AtomicBool::new(false);
    let mut windows = std::collections::BTreeMap::new();
    let began = tokio::time::Instant::now();
    while !stopped.load(Ordering::Relaxed) {
        for node in &fleet.nodes {
            let before = fleet.clock.now().unix_micros() / 1_000_000;
            let passed = fleet.ask(node, "k").0;
            let after = fleet.clock.now().unix_micros() / 1_000_000;
            if before == after {
                *windows.entry(after).or_insert(0u32) += u32::from(passed);
            }
        }
        stopped.store(began.elapsed() > Duration::from_secs(4), Ordering::Relaxed);
    }
    assert!(windows.values().all(|&passed| passed <= 200), "{windows:?}");
    assert!(windows.values().filter(|&&passed| passed >= 150).count() >= 2, "{windows:?}");
}

/// A node that shuts down returns its leases.
#[test]
fn leaving_node_returns_its_leases() {
    let server = Server::redis();
    let quota = Quota::token_bucket(Rate::per_day(50).burst(4_000)).unwrap();
    let fleet = Fleet::new(&server.url(), 1, &quota);
    let (passed, ..) = fleet.send_load("k", Duration::from_millis(500));
    fleet.runtime.block_on(fleet.nodes[0].store().close(fleet.clock.now()));
    assert_eq!(fleet.held(), 0);
    let request = CheckRequest::new().with("key", "k").unwrap();
    let look = fleet.runtime.block_on(fleet.nodes[0].operator().peek(&request, fleet.clock.now()));
    assert_eq!(look.limits().next().unwrap().outcome.remaining, 4_000 - passed);
    assert!(fleet.nodes[0].store().report().returned > 0);
}

/// A node on the store and a node on memory, with the same injected time and requests, give the same answers, acquire
/// the same leases and return the same units.
#[test]
fn store_lends_as_memory_does() {
    let server = Server::redis();
    lends_as_memory_does(&server.url(), 20_000, |report| report);
}

/// The same on a cluster, where the counters of a request are in several slots.
#[test]
fn cluster_lends_as_memory_does() {
    let cluster = Cluster::calm(Program::Redis);
    // A request that one slot denied was refunded in the others. An unused counter has no key, so units returned for an
    // earlier window are dropped, and the store reports success.
    let comparable = |report: LeaseReport| LeaseReport {
        returned: report.returned + report.stranded,
        stranded: 0,
        ..report
    };
    lends_as_memory_does(&cluster.url(), 20_000, comparable);
}

fn lends_as_memory_does(url: &str, steps: u64, told_of: impl Fn(LeaseReport) -> LeaseReport) {
    let runtime = new_runtime();
    let quotas = [
        Quota::token_bucket(Rate::per_second(200).burst(300)).unwrap(),
        Quota::gcra(Rate::per_second(7).burst(90)).unwrap(),
        Quota::fixed_window(Rate::per_second(150), Align::Epoch).unwrap(),
        Quota::fixed_window(Rate::per_second(120), Align::FirstHit).unwrap(),
        Quota::sliding_window(Rate::per_second(140), 10, Estimate::Strict).unwrap(),
        Quota::sliding_window(Rate::per_minute(2_000), 3, Estimate::Interpolate).unwrap(),
    ];
    let start = tollgate::Timestamp::from_unix_seconds(1_700_000_000);
    let lending = MemoryLender::new(MemoryStore::new(16 << 20, start), 2);
    let inside = runtime.enter();
    let store =
        RedisStore::start(settings(url).long_deadline().injected_time().nodes(Nodes::Fixed(2)).unwrap());
    let real = Engine::builder()
        .policy(all(&quotas))
        .store(LeasedStore::new(store.unwrap(), 10_000))
        .secret(secret())
        .build();
    drop(inside);
    let model = Engine::builder()
        .policy(all(&quotas))
        .store(LeasedStore::new(lending, 10_000))
        .secret(secret())
        .build();
    until("the store is connected", || real.store().store().is_prepared().then_some(()));
    let mut seed = 0x2545_F491_4F6C_DD1D_u64;
    let mut random = |below: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % below
    };
    let mut now = start;
    for step in 0..steps {
        // Now and then one key of each limit gets several times its capacity.
        let is_busy = step / 2_000 % 2 == 1;
        let gap = if is_busy { 800 } else { 4_000 };
        now = now + Ticks::from_micros(if random(400) == 0 { random(2_000_000) } else { random(gap) });
        // Which limits a request meets, which key, and what it costs.
        let (kind, key) = if is_busy { (random(6), 0) } else { (random(8), random(3)) };
        let (kind, key, cost) = (kind.to_string(), key.to_string(), 1 + random(2) * random(4) * random(2));
        let request = CheckRequest::new().with("kind", kind.as_str()).unwrap();
        let request = request.with("key", key.as_str()).unwrap().cost(cost).unwrap();
        let (one, other) =
            runtime.block_on(async { (real.check(&request, now).await, model.check(&request, now).await) });
        let summary = |decision: &tollgate::Decision| {
            let each = decision.limits().map(|status| (status.outcome, status.source));
            each.collect::<Vec<_>>()
        };
        assert_eq!(summary(&one), summary(&other), "step {step}: {request:?} at {now:?}");
        if random(10) == 0 {
            runtime.block_on(async {
                real.store().maintain(now).await;
                model.store().maintain(now).await;
            });
        }
        assert_eq!(
            told_of(real.store().report()),
            told_of(model.store().report()),
            "step {step}: {request:?} at {now:?}, {:?}",
            summary(&one)
        );
    }
    let report = real.store().report();
    assert!(
        report.acquired > steps / 4 && report.returned > steps / 40 && report.deny_cache_hits > steps / 40,
        "{report:?}"
    );
}

/// Limits that some requests meet alone and others meet together.
fn all(quotas: &[Quota]) -> Policy {
    let each = (0..).zip(quotas).map(|(number, quota): (u32, &Quota)| {
        let own = number.to_string();
        let kinds = [own.as_str(), "7"].into_iter().chain((number % 2 == 0).then_some("6"));
        let limit = Limit::new(&format!("limit {number}"), quota.clone()).by(["key"]);
        let limit = limit.when_one_of("kind", kinds).consistency(Consistency::Leased);
        limit.cost(tollgate::policy::Cost::Asked).lease(100_000, Ticks::from_millis(250))
    });
    Policy::new(each.collect()).unwrap()
}
