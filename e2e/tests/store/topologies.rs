//! Topologies of a store through an engine: a cluster whose slots move and whose primaries change, sentinels, TLS.

#![allow(
    clippy::await_holding_lock,
    reason = "the guard keeps tests apart that need the machine to themselves, and each test has a thread"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tollgate::policy::{Cost, Limit, LimitBuilder, OnStoreFailure};
use tollgate::{CheckRequest, Clock, Engine, Policy, Quota, Rate, Source};
use tollgate_redis::{BreakerState, Nodes, RedisStore, ReplyClass, Settings, TlsFiles};

use crate::cluster::Cluster;
use crate::sentinel::SentinelSetup;
use crate::server::{Plan, Program, Server};

/// Long enough for a machine that runs all tests at once.
const TIMEOUT: Duration = Duration::from_millis(50);
/// More units than any test uses.
const MANY: u64 = 1_000_000;

fn settings(url: &str) -> Settings {
    let settings = url.parse::<Settings>().unwrap().deadline(TIMEOUT).unwrap();
    settings.secret(b"the secret of these tests").unwrap()
}

fn bucket(name: &str, by: &str, units: u64) -> LimitBuilder {
    let quota = Quota::token_bucket(Rate::per_day(units)).unwrap();
    Limit::new(name, quota).by([by]).cost(Cost::Asked)
}

fn engine(settings: Settings, limits: Vec<LimitBuilder>) -> Engine<RedisStore> {
    let store = RedisStore::start(settings).unwrap();
    Engine::builder().policy(Policy::new(limits).unwrap()).store(store).build()
}

async fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..4_000 {
        if is_so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("never: {what}");
}

async fn is_well(engine: &Engine<RedisStore>) {
    eventually("all shards are well", || {
        let shards = engine.store().report().shards;
        shards.iter().all(|shard| shard.is_connected && shard.state == BreakerState::Closed)
    })
    .await;
}

async fn is_mapped(engine: &Engine<RedisStore>) {
    eventually("three shards are known", || engine.store().report().shards.len() == 3).await;
    is_well(engine).await;
}

fn asking<'a>(user: &'a str, tenant: &'a str, cost: u64) -> CheckRequest<'a> {
    CheckRequest::new().with("user", user).unwrap().with("tenant", tenant).unwrap().cost(cost).unwrap()
}

/// Whether the request was allowed, and whether the store decided.
async fn check(
    engine: &Engine<RedisStore>,
    clock: &Clock,
    user: &str,
    tenant: &str,
    cost: u64,
) -> (bool, bool) {
    let decision = engine.check(&asking(user, tenant, cost), clock.now()).await;
    (decision.is_allowed(), decision.limits().all(|limit| limit.source == Source::Exact))
}

/// Counters in different slots are charged together, and refunded if one of them denies.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_are_charged_together() {
    let cluster = Cluster::calm(Program::Redis);
    let engine = engine(
        settings(&cluster.url()).long_deadline(),
        vec![bucket("user", "user", 100), bucket("tenant", "tenant", 10)],
    );
    let clock = Clock::precise();
    is_mapped(&engine).await;
    for tenant in 0..20 {
        let (user, tenant) = (format!("u{tenant}"), format!("t{tenant}"));
        assert_eq!(check(&engine, &clock, &user, &tenant, 7).await, (true, true));
        for _ in 0..5 {
            let decision = engine.check(&asking(&user, &tenant, 7), clock.now()).await;
            assert!(!decision.is_allowed());
            let left: Vec<u64> = decision.limits().map(|limit| limit.outcome.remaining).collect();
            assert_eq!(left, [93, 3], "what the tenant's limit denied must not cost the user");
        }
    }
    eventually("all refunds are settled", || engine.store().report().corrections == 0).await;
    for tenant in 0..20 {
        let (user, other) = (format!("u{tenant}"), format!("o{tenant}"));
        let decision = engine.check(&asking(&user, &other, 0), clock.now()).await;
        assert_eq!(decision.limits().next().unwrap().outcome.remaining, 93);
    }
    let primaries = cluster.servers.iter().filter(|server| server.info("role").as_deref() == Some("master"));
    let immortal: Vec<_> = primaries.flat_map(Server::lives).filter(|(_, life)| *life < 0).collect();
    assert!(immortal.is_empty(), "{immortal:?}");
}

/// If one slot is unreachable, the charges in the others are refunded, and nothing is counted twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unreachable_slot_costs_the_others_nothing() {
    let mut cluster = Cluster::start(Program::Redis);
    let deny = |name: &str| bucket(name, name, 100).on_store_failure(OnStoreFailure::Deny);
    let engine = engine(settings(&cluster.url()).long_deadline(), vec![deny("user"), deny("tenant")]);
    let clock = Clock::precise();
    is_mapped(&engine).await;
    let names: Vec<(String, String)> = (0..40).map(|pair| (format!("u{pair}"), format!("t{pair}"))).collect();
    for (user, tenant) in &names {
        assert_eq!(check(&engine, &clock, user, tenant, 1).await, (true, true));
    }
    let victim = cluster.primary_of(0);
    cluster.await_replicated(victim);
    cluster.servers[victim].kill();
    eventually("one is missed", || {
        engine.store().report().shards.iter().any(|shard| shard.state != BreakerState::Closed)
    })
    .await;
    let mut admitted = vec![1; names.len()];
    let mut refused = 0;
    for (pair, (user, tenant)) in names.iter().enumerate() {
        let (is_allowed, _) = check(&engine, &clock, user, tenant, 10).await;
        admitted[pair] += if is_allowed { 10 } else { 0 };
        refused += u32::from(!is_allowed);
    }
    assert!(refused > 0 && refused < 40, "{refused} of 40 refused: the fault must hit some");
    eventually("another takes over", || {
        let port = cluster.servers[victim].port;
        cluster
            .nodes()
            .iter()
            .any(|node| node.is("master") && !node.is("fail") && node.owns(0) && node.port != port)
    })
    .await;
    is_mapped(&engine).await;
    eventually("all refunds are settled", || engine.store().report().corrections == 0).await;
    for ((user, tenant), admitted) in names.iter().zip(admitted) {
        // The cluster may still change owners. A peek charges nothing, and counts once the store has answered it.
        let mut decision = engine.check(&asking(user, tenant, 0), clock.now()).await;
        for _ in 0..200 {
            if decision.limits().all(|limit| limit.source == Source::Exact) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
            decision = engine.check(&asking(user, tenant, 0), clock.now()).await;
        }
        let left: Vec<u64> = decision.limits().map(|limit| limit.outcome.remaining).collect();
        assert_eq!(left, [100 - admitted, 100 - admitted], "{user}");
    }
}

/// Keys in many slots are counted exactly: each request takes one round trip, and concurrent ones are pipelined.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_across_a_cluster_are_counted_exactly() {
    let cluster = Cluster::calm(Program::Redis);
    let engine = Arc::new(engine(settings(&cluster.url()).long_deadline(), vec![bucket("user", "user", 5)]));
    let clock = Arc::new(Clock::precise());
    is_mapped(&engine).await;
    let tasks: Vec<_> = (0..64)
        .map(|task| {
            let (engine, clock) = (Arc::clone(&engine), Arc::clone(&clock));
            tokio::spawn(async move {
                let mut allowed = 0;
                for key in 0..40 {
                    // Eight tasks share each key.
                    let user = format!("{}-{key}", task / 8);
                    let (is_allowed, is_exact) = check(&engine, &clock, &user, "t", 1).await;
                    assert!(is_exact);
                    allowed += u64::from(is_allowed);
                }
                allowed
            })
        })
        .collect();
    let mut allowed = 0;
    for task in tasks {
        allowed += task.await.unwrap();
    }
    assert_eq!(allowed, 8 * 40 * 5);
}

/// Waits for a decision of the store: a busy machine may miss some deadlines.
async fn is_asked(engine: &Engine<RedisStore>) {
    let clock = Clock::precise();
    for _ in 0..100 {
        if check(engine, &clock, "u", "t", 1).await == (true, true) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("the store never decided");
}

/// A load while the cluster changes: how many decisions the store made, and how many not.
struct Load {
    stop: Arc<AtomicBool>,
    exact: Arc<AtomicU64>,
    other: Arc<AtomicU64>,
    task: tokio::task::JoinHandle<()>,
}

impl Load {
    fn start(engine: &Arc<Engine<RedisStore>>) -> Self {
        let (stop, exact, other) = (Arc::default(), Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
        let (stopped, good, bad) = (Arc::<AtomicBool>::clone(&stop), Arc::clone(&exact), Arc::clone(&other));
        let engine = Arc::clone(engine);
        let task = tokio::spawn(async move {
            let clock = Clock::precise();
            let mut turn = 0;
            while !stopped.load(Ordering::Relaxed) {
                turn += 1;
                let (_, is_exact) = check(&engine, &clock, &format!("{}", turn % 500), "t", 1).await;
                if is_exact { &good } else { &bad }.fetch_add(1, Ordering::Relaxed);
                // Decisions without the store never wait and would monopolise the runtime.
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
        Self { stop, exact, other, task }
    }

    /// Whether the store made more than 95 percent of many decisions.
    fn is_mostly_exact(&self) -> bool {
        let (exact, other) = (self.exact.load(Ordering::Relaxed), self.other.load(Ordering::Relaxed));
        exact > 500 && exact > other * 20
    }

    async fn end(self) -> (u64, u64) {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.unwrap();
        (self.exact.load(Ordering::Relaxed), self.other.load(Ordering::Relaxed))
    }
}

/// The charges of all counters, as the store reports.
async fn spent(engine: &Engine<RedisStore>) -> u64 {
    let clock = Clock::precise();
    let mut spent = 0;
    for user in 0..500 {
        let decision = engine.check(&asking(&user.to_string(), "t", 0), clock.now()).await;
        let status = decision.limits().next().unwrap();
        assert_eq!(status.source, Source::Exact);
        spent += MANY - status.outcome.remaining;
    }
    spent
}

/// Slots that move under load cost nothing: the store makes every decision, and every unit is counted once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_migrate_under_load() {
    let cluster = Cluster::calm(Program::Redis);
    // A daily quota without a refill during the test.
    let engine = Arc::new(engine(settings(&cluster.url()).long_deadline(), vec![slow_bucket()]));
    is_mapped(&engine).await;
    let load = Load::start(&engine);
    let (from, to) = (cluster.primary_of(0), cluster.primary_of(16_383));
    cluster.reshard(300, from, to);
    let (exact, other) = load.end().await;
    let report = engine.store().report();
    let redirected =
        report.failures[ReplyClass::Moved as usize].1 + report.failures[ReplyClass::Ask as usize].1;
    assert!(redirected > 0, "no slot moved under the load");
    assert_eq!(other, 0, "{exact} decided by the store; {report:?}");
    is_well(&engine).await;
    assert_eq!(spent(&engine).await, exact);
}

fn slow_bucket() -> LimitBuilder {
    use tollgate::algorithm::fixed_window::{Align, FixedWindow};
    let window = FixedWindow::new(Rate::per_day(MANY), Align::FirstHit).unwrap();
    Limit::new("user", Quota::FixedWindow(window)).by(["user"]).cost(Cost::Asked)
}

/// After a planned failover and after a killed primary, other keys are not affected and its own recover soon.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn primaries_fail_over() {
    let mut cluster = Cluster::start(Program::Redis);
    let engine = Arc::new(engine(settings(&cluster.url()), vec![slow_bucket()]));
    is_mapped(&engine).await;
    let load = Load::start(&engine);
    let primary = cluster.primary_of(0);
    let replica = cluster.replica_of(primary);
    cluster.servers[replica].tell(&["CLUSTER", "FAILOVER"]);
    eventually("the replica takes over", || cluster.primary_of(0) == replica).await;
    is_mapped(&engine).await;
    eventually("nearly all are decided by the store", || load.is_mostly_exact()).await;
    load.end().await;

    let load = Load::start(&engine);
    cluster.servers[replica].kill();
    eventually("another takes over", || {
        let nodes = cluster.nodes();
        nodes.iter().any(|node| {
            node.is("master")
                && !node.is("fail")
                && node.owns(0)
                && node.port != cluster.servers[replica].port
        })
    })
    .await;
    let promoted = tokio::time::Instant::now();
    is_mapped(&engine).await;
    let learnt = promoted.elapsed();
    let (exact, other) = load.end().await;
    assert!(exact > 0 && other > 0, "{exact} decided by the store, {other} not: no fault was seen");
    assert!(learnt < Duration::from_secs(5), "{learnt:?}");
    is_asked(&engine).await;
}

/// Sentinels name the primary, and the next one when it is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_are_followed() {
    let mut watched = SentinelSetup::start();
    let engine = engine(settings(&watched.url()), vec![bucket("user", "user", MANY)]);
    let clock = Clock::precise();
    is_well(&engine).await;
    is_asked(&engine).await;
    assert!(watched.servers[0].calls("evalsha").0 > 0);
    watched.servers[0].kill();
    eventually("the store is missed", || engine.store().report().shards[0].state != BreakerState::Closed)
        .await;
    assert!(!check(&engine, &clock, "u", "t", 1).await.1);
    eventually("the replica is promoted", || watched.primary() == watched.servers[1].port).await;
    is_well(&engine).await;
    is_asked(&engine).await;
}

/// A client certificate of the CA is accepted. Without it, or with an unknown CA, nothing is sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_verifies_both_sides() {
    let server = Plan::new(Program::Redis).tls().start();
    let (port, [authority, certificate, key]) = server.tls();
    let url = format!("rediss://127.0.0.1:{port}");
    let files = TlsFiles {
        ca: Some(authority.clone().into()),
        certificate: Some(certificate.into()),
        key: Some(key.into()),
    };
    let limits = || vec![bucket("user", "user", MANY)];
    let good = engine(settings(&url).long_deadline().tls(files.clone()).unwrap(), limits());
    is_well(&good).await;
    assert_eq!(check(&good, &Clock::precise(), "u", "t", 1).await, (true, true));

    let strangers = TlsFiles { ca: None, ..files.clone() };
    let anonymous = TlsFiles { ca: Some(authority.into()), ..TlsFiles::default() };
    for files in [strangers, anonymous] {
        let bad = engine(settings(&url).long_deadline().tls(files).unwrap(), limits());
        eventually("the connection is refused", || bad.store().report().connection_failures > 0).await;
        assert!(!check(&bad, &Clock::precise(), "u", "t", 1).await.1);
        let error = bad.store().report().shards[0].last_error.clone();
        assert!(error.is_some_and(|error| !error.is_empty()));
    }
}

/// Nodes that share a store count each other and share a secret. A node that leaves is no longer counted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_of_a_fleet_find_each_other() {
    let server = Server::redis();
    let plain = || server.url().parse::<Settings>().unwrap().long_deadline();
    let stores: Vec<_> = (0..3).map(|_| RedisStore::start(plain()).unwrap()).collect();
    let policy = || Policy::new(vec![bucket("user", "user", 10)]).unwrap();
    let clock = Clock::precise();
    let mut engines = Vec::new();
    for store in stores {
        let engine = Engine::builder().policy(policy()).store(store).build();
        assert!(
            !check(&engine, &clock, "u", "t", 1).await.1,
            "the store decides nothing before the secret is known"
        );
        engine.store().join(|secret| engine.maintenance().siblings().rekey(secret)).await;
        engines.push(engine);
    }
    for (node, engine) in engines.iter().enumerate() {
        let (is_allowed, is_exact) = check(engine, &clock, "u", "t", 4).await;
        assert_eq!((is_allowed, is_exact), (node < 2, true), "one bucket for all");
    }
    eventually("all are counted", || engines.iter().all(|engine| engine.store().node_count() == 3)).await;
    engines.pop().unwrap().store().leave().await;
    eventually("one has left", || engines.iter().all(|engine| engine.store().node_count() == 2)).await;
    server.tell(&["FLUSHALL"]);
    eventually("the secret is back", || server.lives().iter().any(|(key, _)| key == "tg:{secret}")).await;
    let late = Engine::builder().policy(policy()).store(RedisStore::start(plain()).unwrap()).build();
    late.store().join(|secret| late.maintenance().siblings().rekey(secret)).await;
    assert_eq!(check(&engines[0], &clock, "u", "t", 7).await, (true, true));
    assert_eq!(check(&late, &clock, "u", "t", 4).await, (false, true), "one secret for all, also now");
    let fixed = RedisStore::start(plain().nodes(Nodes::Fixed(7)).unwrap()).unwrap();
    assert_eq!(fixed.node_count(), 7);
    let immortal: Vec<_> = server.lives().into_iter().filter(|(_, life)| *life < 0).collect();
    assert!(immortal.is_empty(), "{immortal:?}");
}
