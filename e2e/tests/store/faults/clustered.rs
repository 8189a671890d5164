//! Faults of a cluster of six nodes: killed, stopped and replaced nodes, migrating slots, flushed scripts.

use std::sync::Arc;
use std::time::Duration;

use tollgate::Engine;

use super::Rig;
use super::assessment::FaultSpans;
use super::outage::Outage;
use super::report::{AWAY, DEFAULT_DEADLINE_AWAY, Measure, Promise, UNNOTICED};
use crate::cluster::{Cluster, SLOTS};
use crate::fleet::{Fleet, Running};
use crate::server::{Program, Server};
use crate::store::{Node, Shared};
use tollgate_testkit::{rest, until};

/// How often scripts are flushed.
const FLUSH_EVERY: Duration = Duration::from_millis(100);
/// Slots that are moved by hand.
const SLOWLY: usize = 10;
/// How long a primary stays stopped after its replica took over.
const STAYS_FOR: Duration = Duration::from_secs(2);
/// How long the whole store is away in the long run.
const OUTAGE: Duration = Duration::from_secs(60);

/// Nodes know the new primary within a second after the promotion; then the store recovers as after any outage.
pub(super) const FAILOVER: Promise = Promise { number: "F4", back: Some([2_000, 2_000, 5_000]), ..AWAY };
const MAP: u64 = 1_000;

/// The faults of every commit.
pub(super) fn short(rig: &mut Rig) {
    let mut cluster = Cluster::start(Program::Redis);
    let fleet = rig.fleet([&cluster.url(); 3]);
    let unknown = UNNOTICED.numbered("F6");
    rig.run("SCRIPT FLUSH every 100 ms", unknown, &fleet, |running| flush(&cluster.servers, running, 20));
    rig.found(cluster.immortal());
    rig.run("STOP for 1 s, CONT", AWAY.numbered("F3"), &fleet, |running| pause(&cluster, running));
    rig.found(cluster.immortal());
    rig.run("CLUSTER FAILOVER", FAILOVER, &fleet, |running| failover(&cluster, &fleet, running, ""));
    rig.found(cluster.immortal());
    rig.run("kill -9 of a primary", FAILOVER, &fleet, |running| kill(&mut cluster, &fleet, running));
    rig.found(cluster.immortal());
}

/// The other faults.
pub(super) fn long(rig: &mut Rig) {
    let mut cluster = Cluster::start(Program::Redis);
    let url = cluster.url();
    let fleet = rig.fleet([&url; 3]);
    let moves = UNNOTICED.numbered("F5");
    rig.run("reshard under load", moves, &fleet, |running| reshard(&cluster, running));
    rig.found(cluster.immortal());
    for (name, how) in [("FAILOVER FORCE", "FORCE"), ("FAILOVER TAKEOVER", "TAKEOVER")] {
        rig.run(name, FAILOVER, &fleet, |running| failover(&cluster, &fleet, running, how));
        rig.found(cluster.immortal());
        cluster.await_whole();
    }
    let full = Promise { back: Some([5_000, 5_000, 5_000]), ..AWAY.numbered("F8") };
    rig.run("maxmemory", full, &fleet, |running| memory(&cluster, running));
    rig.found(cluster.immortal());
    rig.run("CLIENT PAUSE 1 s", AWAY.numbered("F2"), &fleet, |running| client_pause(&cluster, running));
    rig.found(cluster.immortal());
    let name = "STOP until replaced, CONT";
    rig.run(name, FAILOVER, &fleet, |running| long_pause(&cluster, &fleet, running));
    rig.found(cluster.immortal());
    cluster.await_whole();
    drop(fleet);
    let hasty = rig.default_fleet([&url; 3]);
    let stop = DEFAULT_DEADLINE_AWAY.numbered("F3");
    rig.run("STOP for 1 s, CONT, by default", stop, &hasty, |running| pause(&cluster, running));
    rig.found(cluster.immortal());
    drop(hasty);
    let fleet = rig.fleet([&url; 3]);
    rig.run("60 s without any node", AWAY, &fleet, |running| outage(&mut cluster, running));
    rig.found(cluster.immortal());
}

/// Measures from the promotion until all nodes are connected to the new primary.
pub(super) fn await_map<S: Node>(fleet: &Fleet<S>, port: u16, running: &Running, promoted: u64) -> Measure {
    let address = format!("127.0.0.1:{port}");
    until("the nodes know the new primary", || {
        let knows = |engine: &Arc<Engine<S>>| {
            let shards = engine.store().redis().report().shards;
            shards.iter().any(|shard| shard.address == address && shard.is_connected)
        };
        fleet.engines.iter().all(knows).then_some(())
    });
    Measure::millis("slot map after the promotion", (running.recorder.now() - promoted) / 1_000, MAP)
}

/// Every server's scripts are flushed repeatedly.
pub(super) fn flush(servers: &[Server], running: &Running, times: u32) -> FaultSpans {
    let unknown = || servers.iter().map(|server| server.errors("NOSCRIPT")).sum::<u64>();
    let before = unknown();
    for _ in 0..times {
        for server in servers {
            server.tell(&["SCRIPT", "FLUSH", "SYNC"]);
        }
        rest(FLUSH_EVERY);
    }
    let evidence = vec![("NOSCRIPT".to_owned(), unknown() - before)];
    FaultSpans { evidence, healthy: running.recorder.now(), ..FaultSpans::default() }
}

/// A primary is stopped, and continues before a failover.
fn pause(cluster: &Cluster, running: &Running) -> FaultSpans {
    let primary = &cluster.servers[cluster.primary_of(0)];
    let outage = Outage::begin(running);
    primary.signal("-STOP");
    rest(Duration::from_secs(1));
    primary.signal("-CONT");
    outage.over(&[("signal", 2)])
}

/// A primary is stopped until its replica has taken over, and for a while longer.
fn long_pause(cluster: &Cluster, fleet: &Fleet<Shared>, running: &Running) -> FaultSpans {
    let primary = cluster.primary_of(0);
    let replica = &cluster.servers[cluster.replica_of(primary)];
    let outage = Outage::begin(running);
    cluster.servers[primary].signal("-STOP");
    until("the replica is promoted", || (replica.info("role")? == "master").then_some(()));
    let (promoted, took) = (running.recorder.now(), outage.lasted());
    let map = await_map(fleet, replica.port, running, promoted);
    let lost = vec![(outage.began, running.recorder.now())];
    rest(STAYS_FOR);
    cluster.servers[primary].signal("-CONT");
    // The nodes must not trust the old primary when it continues.
    rest(Duration::from_secs(1));
    let spans = outage.over(&[("promotion", 1), ("millisecond until it", took)]);
    FaultSpans { losses: lost, healthy: promoted, measures: vec![map], ..spans }
}

/// A replica takes over from a running primary. If the primary cooperates, nothing is lost; otherwise the writes not
/// yet replicated are.
fn failover(cluster: &Cluster, fleet: &Fleet<Shared>, running: &Running, how: &str) -> FaultSpans {
    let primary = cluster.primary_of(0);
    let replica = cluster.replica_of(primary);
    let began = running.recorder.now();
    let words: Vec<&str> = ["CLUSTER", "FAILOVER", how].into_iter().filter(|word| !word.is_empty()).collect();
    cluster.servers[replica].tell(&words);
    until("the replica takes over", || (cluster.servers[replica].info("role")? == "master").then_some(()));
    let promoted = running.recorder.now();
    let map = await_map(fleet, cluster.servers[replica].port, running, promoted);
    until("all know the new primary", || {
        let owner = cluster.servers.iter().all(|server| {
            let text: String = server.ask(&["CLUSTER", "NODES"]).unwrap_or_default();
            let new = format!(":{}@", cluster.servers[replica].port);
            text.lines()
                .any(|line| line.contains(&new) && line.contains("master") && line.contains(" connected "))
        });
        owner.then_some(())
    });
    let evidence = vec![("promotion".to_owned(), u64::from(cluster.primary_of(0) == replica))];
    let losses = if how.is_empty() { vec![] } else { vec![(began, running.recorder.now())] };
    let measures = vec![map];
    FaultSpans {
        evidence,
        losses,
        outages: vec![began],
        healthy: promoted,
        measures,
        ..FaultSpans::default()
    }
}

/// A primary dies under load, its replica takes over, and it comes back as a replica.
pub(super) fn kill<S: Node>(cluster: &mut Cluster, fleet: &Fleet<S>, running: &Running) -> FaultSpans {
    let primary = cluster.primary_of(0);
    let replica = cluster.replica_of(primary);
    let outage = Outage::begin(running);
    let began = outage.began;
    cluster.servers[primary].kill();
    until("the replica is promoted", || (cluster.servers[replica].info("role")? == "master").then_some(()));
    let promoted = running.recorder.now();
    let map = await_map(fleet, cluster.servers[replica].port, running, promoted);
    until("the cluster is whole enough", || {
        let text: String = cluster.servers[replica].ask(&["CLUSTER", "INFO"]).ok()?;
        text.contains("cluster_state:ok").then_some(())
    });
    let (took, lost) = ((promoted - began) / 1_000, running.recorder.now());
    cluster.servers[primary].restart();
    // It is back as a replica, and must not be taken for the primary.
    cluster.await_whole();
    let spans = outage.over(&[("promotion", 1), ("millisecond until it", took)]);
    FaultSpans { losses: vec![(began, lost)], healthy: promoted, measures: vec![map], ..spans }
}

/// A thousand slots move from one primary to the next, and back.
fn reshard(cluster: &Cluster, running: &Running) -> FaultSpans {
    let redirections = |kind: &str| cluster.servers.iter().map(|server| server.errors(kind)).sum::<u64>();
    let before = (redirections("MOVED"), redirections("ASK"));
    let (one, other) = (cluster.primary_of(0), cluster.primary_of(SLOTS - 1));
    let slots = |index: usize| {
        let port = cluster.servers[index].port;
        let node = cluster.nodes().into_iter().find(|node| node.port == port).unwrap();
        node.slots.iter().map(|&(first, last)| u32::from(last - first) + 1).sum::<u32>()
    };
    // All slots, so every key has moved.
    let many = slots(one) - 1;
    cluster.reshard(many, one, other);
    let left = slots(one);
    cluster.reshard(many, other, one);
    // Some slowly, by hand: the keys have moved, but the other nodes are not informed yet.
    let server = &cluster.servers[one];
    for (key, _) in server.lives().into_iter().filter(|(key, _)| key.starts_with("tg:{")).take(SLOWLY) {
        let slot: u16 = server.ask(&["CLUSTER", "KEYSLOT", &key]).unwrap();
        // Two keys may share a slot, which has then moved already.
        if cluster.primary_of(slot) == one {
            cluster.move_slot(slot, one, other, Duration::from_millis(200));
        }
    }
    let evidence = vec![
        ("slot moved away".to_owned(), u64::from(many + 1 - left)),
        ("MOVED".to_owned(), redirections("MOVED") - before.0),
        ("ASK".to_owned(), redirections("ASK") - before.1),
    ];
    FaultSpans { evidence, healthy: running.recorder.now(), ..FaultSpans::default() }
}

/// A primary is out of memory and refuses writes.
fn memory(cluster: &Cluster, running: &Running) -> FaultSpans {
    let server = &cluster.servers[cluster.primary_of(0)];
    let outage = Outage::begin(running);
    server.tell(&["CONFIG", "SET", "maxmemory", "1mb"]);
    rest(Duration::from_secs(2));
    let refused = server.errors("OOM");
    server.tell(&["CONFIG", "SET", "maxmemory", "0"]);
    outage.over(&[("OOM", refused)])
}

/// A primary pauses all clients for a second.
fn client_pause(cluster: &Cluster, running: &Running) -> FaultSpans {
    let server = &cluster.servers[cluster.primary_of(0)];
    let outage = Outage::begin(running);
    server.tell(&["CLIENT", "PAUSE", "1000", "ALL"]);
    // A paused client is answered afterwards; so is this command.
    server.tell(&["PING"]);
    let lasted = outage.lasted();
    outage.over(&[("millisecond that a PING took", lasted)])
}

/// All six nodes are killed, and come back empty after a minute.
fn outage(cluster: &mut Cluster, running: &Running) -> FaultSpans {
    let outage = Outage::begin(running);
    for server in &mut cluster.servers {
        server.kill();
    }
    rest(OUTAGE);
    let fast = outage.fast_path(1_000_000);
    for server in &mut cluster.servers {
        server.restart();
    }
    cluster.await_whole();
    FaultSpans { measures: vec![fast], ..outage.over_empty(&[("node killed", 6)]) }
}
