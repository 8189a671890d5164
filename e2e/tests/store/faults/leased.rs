//! The same faults while nodes hold leases. Leased units were charged before the fault, so they may be spent and are
//! allowed for; nothing else is.

use std::sync::Arc;
use std::time::Duration;

use tollgate::Engine;
use tollgate::lease::{LeaseReport, LeasedStore};
use tollgate_redis::RedisStore;

use super::assessment::FaultSpans;
use super::clustered::{FAILOVER, flush, kill};
use super::outage::Outage;
use super::report::{AWAY, Measure, UNNOTICED, Unit};
use super::standalone::{SKEWS, STEPS, immortal, with_network_fault};
use super::{DEADLINE, NODES, Rig};
use crate::cluster::Cluster;
use crate::fleet::{Fleet, LEASED, Load, Running, policy};
use crate::proxy::{Network, Proxy};
use crate::server::{Plan, Program, Server};
use crate::store::{Node, secret, settings, usable};
use tollgate_testkit::rest;

/// How often leases are maintained, as a server does.
const MAINTAIN_EVERY: Duration = Duration::from_millis(5);
const KEYS_MAX: usize = 10_000;
/// How long a fault lasts, and how long the store is away.
const FAULT_FOR: Duration = Duration::from_secs(2);

type Held = Fleet<LeasedStore<RedisStore>>;

/// The faults of every commit.
pub(super) fn short(rig: &mut Rig) {
    let server = Server::redis();
    let proxy = Proxy::before(server.port);
    let fleet = fleet(rig, [&proxy.url(), &server.url(), &server.url()], &[0; NODES]);
    let unknown = UNNOTICED.numbered("F6");
    rig.run("leases, SCRIPT FLUSH every 100 ms", unknown, &fleet, |running| {
        held(&fleet, || flush(std::slice::from_ref(&server), running, 20))
    });
    rig.found(immortal(&server));
    let (cut, keys) = (AWAY.numbered("F12"), hot_keys(rig));
    rig.run("leases, half-open TCP, one node of three", cut, &fleet, |running| {
        partition(keys, &fleet, || with_network_fault(&proxy, Network::HalfOpen, &fleet, running))
    });
    rig.found(immortal(&server));
}

/// The other faults.
pub(super) fn long(rig: &mut Rig) {
    one_server(rig);
    let mut cluster = Cluster::start(Program::Redis);
    let fleet = fleet(rig, [&cluster.url(); NODES], &[0; NODES]);
    rig.run("leases, kill -9 of a primary", FAILOVER, &fleet, |running| {
        held(&fleet, || kill(&mut cluster, &fleet, running))
    });
    rig.found(cluster.immortal());
}

fn one_server(rig: &mut Rig) {
    let mut server = Plan::new(Program::Valkey).wrong_clock().start();
    let proxy = Proxy::before(server.port);
    let fleet = fleet(rig, [&proxy.url(), &server.url(), &server.url()], &[0; NODES]);
    let keys = hot_keys(rig);
    rig.run("leases, connections refused, one node of three", AWAY.numbered("F12"), &fleet, |running| {
        partition(keys, &fleet, || with_network_fault(&proxy, Network::Refuse, &fleet, running))
    });
    rig.found(immortal(&server));
    for (name, offsets) in [("leases, clock −5 s, +5 s", [-5, 0]), ("leases, clock +1 h, −1 h", [3_600, 0])]
    {
        rig.run(name, STEPS, &fleet, |running| held(&fleet, || step(&server, offsets, running)));
        rig.found(immortal(&server));
    }
    rig.run("leases, a store that comes back empty", AWAY.numbered("F1"), &fleet, |running| {
        held(&fleet, || {
            let outage = Outage::begin(running);
            server.kill();
            rest(FAULT_FOR);
            server.restart();
            outage.over_empty(&[("server killed", 1)])
        })
    });
    rig.found(immortal(&server));
    drop(fleet);
    let fleet = self::fleet(rig, [&server.url(); NODES], &SKEWS);
    rig.run("leases, clocks of nodes 5 s behind and ahead", UNNOTICED.numbered("F9"), &fleet, |running| {
        held(&fleet, || {
            rest(FAULT_FOR);
            let wrong = SKEWS.iter().filter(|skew| **skew != 0).count() as u64;
            let evidence = vec![("node with a wrong clock".to_owned(), wrong)];
            FaultSpans { evidence, healthy: running.recorder.now(), ..FaultSpans::default() }
        })
    });
    rig.found(immortal(&server));
}

/// Nodes that lease units of hot keys and maintain their leases. Their clocks may be wrong.
fn fleet(rig: &Rig, urls: [&str; NODES], skews: &[i64; NODES]) -> Held {
    let _inside = rig.runtime.enter();
    let engine = |url: &str| {
        let store = usable(settings(url).deadline(DEADLINE).unwrap());
        Arc::new(
            Engine::builder()
                .policy(policy(&LEASED))
                .store(LeasedStore::new(store, KEYS_MAX))
                .secret(secret())
                .build(),
        )
    };
    let mut fleet = Fleet::of(urls.into_iter().map(engine).collect());
    (fleet.terms, fleet.skews) = (LEASED, skews.to_vec());
    for (engine, clock) in fleet.engines.iter().zip(fleet.clocks()) {
        let engine = Arc::downgrade(engine);
        rig.runtime.spawn(async move {
            while let Some(engine) = engine.upgrade() {
                engine.store().maintain(clock.now()).await;
                drop(engine);
                tokio::time::sleep(MAINTAIN_EVERY).await;
            }
        });
    }
    rig.await_peers(&fleet);
    fleet
}

/// Leased keys of a run.
fn hot_keys(rig: &Rig) -> u64 {
    u64::from(Load::of(rig.rate, &LEASED).hot)
}

/// The leases of all nodes, and their use.
fn sum(fleet: &Held, each: fn(&LeaseReport) -> u64) -> u64 {
    fleet.engines.iter().map(|engine| each(&engine.store().leases())).sum()
}

/// A fault while nodes hold units, with which they continue to decide.
fn held(fleet: &Held, fault: impl FnOnce() -> FaultSpans) -> FaultSpans {
    let (units, paid) = (sum(fleet, |report| report.held), sum(fleet, |report| report.lease_hits));
    let mut spans = fault();
    let paid = sum(fleet, |report| report.lease_hits) - paid;
    spans.evidence.push(("unit held when it began".to_owned(), units));
    spans.evidence.push(("request paid of what was held".to_owned(), paid));
    spans
}

/// The same when one node cannot return its units: of each key at most its lease is lost.
fn partition(keys: u64, fleet: &Held, fault: impl FnOnce() -> FaultSpans) -> FaultSpans {
    let stranded = || fleet.engines[0].store().leases().stranded;
    let before = stranded();
    let mut spans = held(fleet, fault);
    let (what, value, most) = ("units stranded", stranded() - before, LEASED.ahead * keys);
    spans.measures.push(Measure { what, unit: Unit::Times, value, most });
    spans
}

/// The store's clock steps away and back.
fn step(server: &Server, offsets: [i64; 2], running: &Running) -> FaultSpans {
    let (mut losses, mut steps) = (Vec::new(), Vec::new());
    for seconds in offsets {
        let began = running.recorder.now();
        server.step_clock(seconds);
        losses.push((began, running.recorder.now()));
        steps.push(began);
        rest(FAULT_FOR);
    }
    let evidence = vec![("step".to_owned(), losses.len() as u64)];
    FaultSpans { evidence, losses, steps, healthy: running.recorder.now(), ..FaultSpans::default() }
}
