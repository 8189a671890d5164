//! Faults of one server and of the way to it: a network that swallows, a server that may not write or is not ready, a clock that steps.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Rig;
use super::clustered::without_store;
use super::judge::Happened;
use super::report::{AWAY, Promise, UNNOTICED};
use crate::fleet::Running;
use crate::proxy::{Proxy, Weather};
use crate::scratch::{rest, until};
use crate::server::{Plan, Program, Server};

/// How long the network is bad.
const STORM: Duration = Duration::from_secs(2);
/// Keys that a server loads before it is ready, and how long each takes it, in microseconds.
const LOADED: u32 = 4_000;
const LOAD_DELAY: u32 = 500;

/// A clock that steps back costs at most what it stepped over, and never more than the burst.
const STEPS: Promise = Promise { steps: true, ..UNNOTICED };

fn immortal(server: &Server) -> Vec<String> {
    server.lives().into_iter().filter(|(_, life)| *life < 0).map(|(key, _)| key).collect()
}

pub(super) fn long(rig: &mut Rig) {
    network(rig);
    replies(rig);
    clocks(rig);
}

/// One node of three is behind a bad network.
fn network(rig: &mut Rig) {
    let server = Server::redis();
    let proxy = Proxy::before(server.port);
    let fleet = rig.fleet([&proxy.url(), &server.url(), &server.url()]);
    let mut weather = |name: &'static str, weather: Weather| {
        rig.await_health(&fleet, name);
        let deeds = &proxy.deeds;
        rig.run(name, AWAY, &fleet, |running| {
            let (first, began) = (running.recorder.len(), running.recorder.now());
            let before = deeds.swallowed_bytes.load(Ordering::Relaxed)
                + deeds.delayed.load(Ordering::Relaxed)
                + deeds.cut.load(Ordering::Relaxed);
            proxy.set(weather);
            rest(STORM);
            let refused = u64::from(
                weather == Weather::Refuse
                    && std::net::TcpStream::connect(("127.0.0.1", proxy.port)).is_err(),
            );
            let after = deeds.swallowed_bytes.load(Ordering::Relaxed)
                + deeds.delayed.load(Ordering::Relaxed)
                + deeds.cut.load(Ordering::Relaxed);
            let without = without_store(running, first);
            proxy.set(Weather::Fair);
            let evidence = vec![
                (
                    "byte swallowed, chunk delayed, connection cut or refused".to_owned(),
                    after - before + refused,
                ),
                ("decision without the store".to_owned(), without),
            ];
            Happened {
                evidence,
                outages: vec![began],
                alone: Some((began, running.recorder.now())),
                healthy: running.recorder.now(),
                ..Happened::default()
            }
        });
        rig.found(immortal(&server));
    };
    weather("half-open TCP, one node of three", Weather::HalfOpen);
    weather("50 ms of latency, one node of three", Weather::Slow(Duration::from_millis(50)));
    weather("connections cut, one node of three", Weather::CutAfter(2_000));
    weather("connections refused, one node of three", Weather::Refuse);
}

/// A server that answers, but with an error.
fn replies(rig: &mut Rig) {
    let server = Plan::new(Program::Redis).start();
    let other = Server::redis();
    let fleet = rig.fleet([&server.url(), &server.url(), &server.url()]);
    rig.run("READONLY", AWAY, &fleet, |running| read_only(&server, &other, running));
    rig.found(immortal(&server));
    let mut server = server;
    rig.await_health(&fleet, "loading");
    rig.run("LOADING", AWAY, &fleet, |running| loading(&mut server, running));
}

/// A primary becomes a replica, and is a primary again.
fn read_only(server: &Server, other: &Server, running: &Running) -> Happened {
    let (first, began) = (running.recorder.len(), running.recorder.now());
    server.tell(&["REPLICAOF", "127.0.0.1", &other.port.to_string()]);
    rest(Duration::from_secs(2));
    let refused = server.errors("READONLY");
    let without = without_store(running, first);
    server.tell(&["REPLICAOF", "NO", "ONE"]);
    let healthy = running.recorder.now();
    let evidence = vec![("READONLY".to_owned(), refused), ("decision without the store".to_owned(), without)];
    // It took over the other's state, which is none.
    Happened {
        evidence,
        losses: vec![(began, healthy)],
        outages: vec![began],
        healthy,
        ..Happened::default()
    }
}

/// A server dies, and takes its time to load what it had written down.
fn loading(server: &mut Server, running: &Running) -> Happened {
    server.tell(&["DEBUG", "POPULATE", &LOADED.to_string()]);
    server.tell(&["CONFIG", "SET", "key-load-delay", &LOAD_DELAY.to_string()]);
    server.tell(&["CONFIG", "SET", "loading-process-events-interval-bytes", "1024"]);
    server.tell(&["CONFIG", "REWRITE"]);
    server.tell(&["SAVE"]);
    let (first, began) = (running.recorder.len(), running.recorder.now());
    server.kill();
    server.restart();
    let refused =
        until("it has loaded", || (server.info("loading")? == "0").then(|| server.errors("LOADING")));
    let healthy = running.recorder.now();
    let evidence = vec![
        ("LOADING".to_owned(), refused),
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

/// The store's clock steps, an hour and a few seconds, back and forth.
fn clocks(rig: &mut Rig) {
    let server = Plan::new(Program::Valkey).wrong_clock().start();
    let fleet = rig.patient_fleet([&server.url(), &server.url(), &server.url()]);
    for (name, offsets) in [
        ("clock −5 s, +5 s", [-5, 0]),
        ("clock +5 s, −5 s", [5, 0]),
        ("clock −1 h, +1 h", [-3_600, 0]),
        ("clock +1 h, −1 h", [3_600, 0]),
    ] {
        rig.run(name, STEPS, &fleet, |running| {
            let (mut losses, mut steps) = (Vec::new(), Vec::new());
            for seconds in offsets {
                let began = running.recorder.now();
                server.step_clock(seconds);
                losses.push((began, running.recorder.now()));
                steps.push(began);
                rest(Duration::from_secs(2));
            }
            let evidence = vec![("step".to_owned(), losses.len() as u64)];
            Happened { evidence, losses, steps, healthy: running.recorder.now(), ..Happened::default() }
        });
        rig.found(immortal(&server));
    }
}
