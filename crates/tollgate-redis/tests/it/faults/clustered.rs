//! Faults of a cluster of six: nodes killed, stopped and replaced, slots on the move, scripts forgotten.

use std::time::Duration;

use super::judge::Happened;
use super::report::{AWAY, HASTY, Promise, UNNOTICED};
use super::{Rig, progress};
use crate::cluster::{Cluster, SLOTS};
use crate::fleet::Running;
use crate::scratch::{rest, until};
use crate::server::Program;

/// How often scripts are forgotten.
const FLUSH_EVERY: Duration = Duration::from_millis(100);
/// Slots that are moved by hand.
const SLOWLY: usize = 10;
/// How long the whole store is away in the whole run.
const OUTAGE: Duration = Duration::from_secs(60);

/// Within a second after the promotion the nodes know it, and then the store is back as after any outage.
const FAILOVER: Promise = Promise { nearly: AWAY.nearly + 1_000, ..AWAY };

/// Faults that every commit is tried with.
pub(super) fn short(rig: &mut Rig) {
    let mut cluster = Cluster::start(Program::Redis);
    let url = cluster.url();
    let fleet = rig.patient_fleet([&url; 3]);
    rig.run("SCRIPT FLUSH every 100 ms", UNNOTICED, &fleet, |running| flush(&cluster, running, 20));
    rig.found(cluster.immortal());
    drop(fleet);
    let fleet = rig.fleet([&url; 3]);
    rig.run("STOP for 1 s, CONT", AWAY, &fleet, |running| pause(&cluster, running, 1_000));
    rig.found(cluster.immortal());
    rig.run("CLUSTER FAILOVER", FAILOVER, &fleet, |running| failover(&cluster, running, ""));
    rig.found(cluster.immortal());
    rig.await_health(&fleet, "kill");
    rig.run("kill -9 of a primary", FAILOVER, &fleet, |running| kill(&mut cluster, running));
    cluster.await_whole();
    rig.found(cluster.immortal());
}

/// The rest.
pub(super) fn long(rig: &mut Rig) {
    let mut cluster = Cluster::start(Program::Redis);
    let url = cluster.url();
    let whole = |cluster: &Cluster| cluster.await_whole();
    let fleet = rig.patient_fleet([&url; 3]);
    rig.run("reshard under load", UNNOTICED, &fleet, |running| reshard(&cluster, running));
    rig.found(cluster.immortal());
    drop(fleet);
    let fleet = rig.fleet([&url; 3]);
    rig.run("FAILOVER FORCE", FAILOVER, &fleet, |running| failover(&cluster, running, "FORCE"));
    rig.found(cluster.immortal());
    whole(&cluster);
    rig.await_health(&fleet, "takeover");
    rig.run("FAILOVER TAKEOVER", FAILOVER, &fleet, |running| failover(&cluster, running, "TAKEOVER"));
    rig.found(cluster.immortal());
    whole(&cluster);
    rig.await_health(&fleet, "maxmemory");
    rig.run("maxmemory", AWAY, &fleet, |running| memory(&cluster, running));
    rig.found(cluster.immortal());
    rig.await_health(&fleet, "pause");
    rig.run("CLIENT PAUSE 1 s", AWAY, &fleet, |running| client_pause(&cluster, running));
    rig.found(cluster.immortal());
    rig.await_health(&fleet, "stop");
    rig.run("STOP for 6 s, CONT", FAILOVER, &fleet, |running| pause(&cluster, running, 6_000));
    rig.found(cluster.immortal());
    whole(&cluster);
    rig.await_health(&fleet, "outage");
    drop(fleet);
    let hasty = rig.default_fleet([&url; 3]);
    rig.run("STOP for 1 s, CONT, by default", HASTY, &hasty, |running| pause(&cluster, running, 1_000));
    rig.found(cluster.immortal());
    drop(hasty);
    let fleet = rig.fleet([&url; 3]);
    rig.run("60 s without any node", AWAY, &fleet, |running| outage(&mut cluster, running));
    rig.found(cluster.immortal());
}

/// Every primary forgets its scripts, again and again.
fn flush(cluster: &Cluster, running: &Running, times: u32) -> Happened {
    let unknown = || cluster.servers.iter().map(|server| server.errors("NOSCRIPT")).sum::<u64>();
    let before = unknown();
    for _ in 0..times {
        for server in &cluster.servers {
            server.tell(&["SCRIPT", "FLUSH", "SYNC"]);
        }
        rest(FLUSH_EVERY);
    }
    let evidence = vec![("NOSCRIPT".to_owned(), unknown() - before)];
    Happened { evidence, healthy: running.recorder.now(), ..Happened::default() }
}

/// A primary stands still, and goes on. Longer than the others wait for it, its replica takes over.
fn pause(cluster: &Cluster, running: &Running, millis: u64) -> Happened {
    let primary = cluster.primary_of(0);
    let first = running.recorder.len();
    let began = running.recorder.now();
    let mut happened = Happened { outages: vec![began], ..Happened::default() };
    cluster.servers[primary].signal("-STOP");
    if millis > 3_000 {
        // Of the others: one that stands still cannot be asked.
        let witness = &cluster.servers[(primary + 1) % 6];
        until("the replica takes over", || {
            let text: String = witness.ask(&["CLUSTER", "NODES"]).ok()?;
            let old =
                text.lines().find(|line| line.contains(&format!(":{}@", cluster.servers[primary].port)))?;
            old.contains("fail").then_some(())?;
            let covered: String = witness.ask(&["CLUSTER", "INFO"]).ok()?;
            covered.contains("cluster_state:ok").then_some(())
        });
        happened.evidence.push(("promotion".to_owned(), 1));
        happened.losses.push((began, running.recorder.now()));
        happened.healthy = running.recorder.now();
        let passed = running.recorder.now() - began;
        rest(Duration::from_micros((millis * 1_000).saturating_sub(passed)));
        cluster.servers[primary].signal("-CONT");
        // Nobody must believe the old one when it wakes.
        rest(Duration::from_secs(1));
    } else {
        rest(Duration::from_millis(millis));
        cluster.servers[primary].signal("-CONT");
        happened.healthy = running.recorder.now();
    }
    happened.evidence.push(("decision without the store".to_owned(), without_store(running, first)));
    happened
}

/// Decisions since `first` that the store did not make.
pub(super) fn without_store(running: &Running, first: usize) -> u64 {
    let seen = running.recorder.since(first);
    seen.iter().filter(|seen| seen.mode != crate::record::Mode::Exact).count() as u64
}

/// A replica takes over from a living primary. With its consent nothing is lost; else what was not yet replicated is.
fn failover(cluster: &Cluster, running: &Running, how: &str) -> Happened {
    let primary = cluster.primary_of(0);
    let replica = cluster.replica_of(primary);
    let began = running.recorder.now();
    let words: Vec<&str> = ["CLUSTER", "FAILOVER", how].into_iter().filter(|word| !word.is_empty()).collect();
    cluster.servers[replica].tell(&words);
    until("the replica takes over", || (cluster.servers[replica].info("role")? == "master").then_some(()));
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
    let healthy = running.recorder.now();
    let losses = if how.is_empty() { vec![] } else { vec![(began, healthy)] };
    Happened { evidence, losses, outages: vec![began], healthy, ..Happened::default() }
}

/// A primary dies in the middle of the load, its replica takes over, and it comes back as a replica.
fn kill(cluster: &mut Cluster, running: &Running) -> Happened {
    let primary = cluster.primary_of(0);
    let replica = cluster.replica_of(primary);
    let (first, began) = (running.recorder.len(), running.recorder.now());
    cluster.servers[primary].kill();
    until("the replica is promoted", || (cluster.servers[replica].info("role")? == "master").then_some(()));
    let promoted = running.recorder.now();
    until("the cluster is whole enough", || {
        let text: String = cluster.servers[replica].ask(&["CLUSTER", "INFO"]).ok()?;
        text.contains("cluster_state:ok").then_some(())
    });
    let healthy = running.recorder.now();
    progress(&format!("  promoted after {} ms", (promoted - began) / 1_000));
    rest(Duration::from_secs(1));
    cluster.servers[primary].restart();
    let evidence = vec![
        ("promotion".to_owned(), 1),
        ("decision without the store".to_owned(), without_store(running, first)),
    ];
    Happened {
        evidence,
        losses: vec![(began, healthy)],
        outages: vec![began],
        healthy,
        ..Happened::default()
    }
}

/// A thousand slots move from one primary to the next, and back.
fn reshard(cluster: &Cluster, running: &Running) -> Happened {
    let told = |kind: &str| cluster.servers.iter().map(|server| server.errors(kind)).sum::<u64>();
    let before = (told("MOVED"), told("ASK"));
    let (one, other) = (cluster.primary_of(0), cluster.primary_of(SLOTS - 1));
    let slots = |index: usize| {
        let port = cluster.servers[index].port;
        let node = cluster.nodes().into_iter().find(|node| node.port == port).unwrap();
        node.slots.iter().map(|&(first, last)| u32::from(last - first) + 1).sum::<u32>()
    };
    // All of them: whatever key there is has moved.
    let many = slots(one) - 1;
    cluster.reshard(many, one, other);
    let left = slots(one);
    cluster.reshard(many, other, one);
    // Some by hand, slowly: the keys of a slot are elsewhere already, and nobody was told.
    let server = &cluster.servers[one];
    for (key, _) in server.lives().into_iter().filter(|(key, _)| key.starts_with("tg:{")).take(SLOWLY) {
        let slot: u16 = server.ask(&["CLUSTER", "KEYSLOT", &key]).unwrap();
        // Two keys may share a slot, which then has moved already.
        if cluster.primary_of(slot) == one {
            cluster.move_slot(slot, one, other, Duration::from_millis(200));
        }
    }
    let evidence = vec![
        ("slot moved away".to_owned(), u64::from(many + 1 - left)),
        ("MOVED".to_owned(), told("MOVED") - before.0),
        ("ASK".to_owned(), told("ASK") - before.1),
    ];
    Happened { evidence, healthy: running.recorder.now(), ..Happened::default() }
}

/// A primary has no room, and takes nothing more.
fn memory(cluster: &Cluster, running: &Running) -> Happened {
    let server = &cluster.servers[cluster.primary_of(0)];
    let (first, began) = (running.recorder.len(), running.recorder.now());
    server.tell(&["CONFIG", "SET", "maxmemory", "1mb"]);
    rest(Duration::from_secs(2));
    let refused = server.errors("OOM");
    server.tell(&["CONFIG", "SET", "maxmemory", "0"]);
    let evidence = vec![
        ("OOM".to_owned(), refused),
        ("decision without the store".to_owned(), without_store(running, first)),
    ];
    Happened { evidence, outages: vec![began], healthy: running.recorder.now(), ..Happened::default() }
}

/// A primary holds all its clients up for a second.
fn client_pause(cluster: &Cluster, running: &Running) -> Happened {
    let server = &cluster.servers[cluster.primary_of(0)];
    let (first, began) = (running.recorder.len(), running.recorder.now());
    server.tell(&["CLIENT", "PAUSE", "1000", "ALL"]);
    // Whoever is held up is not answered before it is over; so is this.
    server.tell(&["PING"]);
    let healthy = running.recorder.now();
    let evidence = vec![
        ("millisecond that a PING took".to_owned(), (healthy - began) / 1_000),
        ("decision without the store".to_owned(), without_store(running, first)),
    ];
    Happened { evidence, outages: vec![began], healthy, ..Happened::default() }
}

/// All six are killed, and come back empty after a minute.
fn outage(cluster: &mut Cluster, running: &Running) -> Happened {
    let (first, began) = (running.recorder.len(), running.recorder.now());
    for server in &mut cluster.servers {
        server.kill();
    }
    rest(OUTAGE);
    let without = without_store(running, first);
    for server in &mut cluster.servers {
        server.restart();
    }
    cluster.await_whole();
    let healthy = running.recorder.now();
    let evidence = vec![("node killed".to_owned(), 6), ("decision without the store".to_owned(), without)];
    Happened {
        evidence,
        losses: vec![(began, healthy)],
        outages: vec![began],
        healthy,
        ..Happened::default()
    }
}
