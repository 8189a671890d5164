//! Faults of the network to one server, and of clocks: a network that drops, slows or cuts, a store or nodes with the
//! wrong time.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tollgate_redis::BreakerState;

use super::Rig;
use super::assessment::FaultSpans;
use super::outage::Outage;
use super::report::{AWAY, DEFAULT_DEADLINE_AWAY, Measure, Promise, UNNOTICED, Unit};
use crate::fleet::{Fleet, QUIET_BIT, Running};
use crate::proxy::{Network, Proxy};
use crate::record::Mode;
use crate::server::{Plan, Program, Server};
use crate::store::Node;
use tollgate_testkit::{rest, until};

/// How long the network fault lasts.
const FAULT_FOR: Duration = Duration::from_secs(2);
/// Milliseconds within which a silent connection is detected.
const FOUND: u64 = 300;
/// How long requests may wait for a silent connection with the default deadline, in microseconds.
const WAITING: u64 = 32;
const DEFAULT_DEADLINE: u64 = 5_000;
/// Clock errors of nodes, in microseconds.
pub(super) const SKEWS: [i64; 3] = [-5_000_000, 0, 5_000_000];

/// Milliseconds after a clock step within which every key is admitted again.
const ADMITTED: u64 = 200;

/// A clock that steps back costs at most the step, and never more than the burst.
pub(super) const STEPS: Promise = Promise { steps: true, ..UNNOTICED.numbered("F10") };

/// Keys without an expiry.
pub(super) fn immortal(server: &Server) -> Vec<String> {
    server.lives().into_iter().filter(|(_, life)| *life < 0).map(|(key, _)| key).collect()
}

pub(super) fn long(rig: &mut Rig) {
    network(rig);
    skew(rig);
    clocks(rig);
}

/// One node of three is behind a bad network.
fn network(rig: &mut Rig) {
    let server = Server::redis();
    let proxy = Proxy::before(server.port);
    let (bad, good) = (proxy.url(), server.url());
    let urls = [bad.as_str(), &good, &good];
    let fleet = rig.fleet(urls);
    let far = Network::Slow(Duration::from_millis(10));
    rig.run("20 ms slower, one node of three", UNNOTICED.numbered("F2"), &fleet, |running| {
        let spans = with_network_fault(&proxy, far, &fleet, running);
        // Much slower than usual, but no reason to do without the store.
        let evidence = spans.evidence[..1].to_vec();
        FaultSpans { evidence, outages: Vec::new(), alone: None, ..spans }
    });
    let slow = Network::Slow(Duration::from_millis(50));
    for (name, number, network) in [
        ("100 ms slower, one node of three", "F2", slow),
        ("half-open TCP, one node of three", "F3", Network::HalfOpen),
        ("connections cut, one node of three", "F12", Network::CutAfter(2_000)),
        ("connections refused, one node of three", "F12", Network::Refuse),
    ] {
        let promise = AWAY.numbered(number);
        rig.run(name, promise, &fleet, |running| with_network_fault(&proxy, network, &fleet, running));
        rig.found(immortal(&server));
    }
    drop(fleet);
    let hasty = rig.default_fleet(urls);
    rig.run("half-open TCP, by default", DEFAULT_DEADLINE_AWAY.numbered("F3"), &hasty, |running| {
        let first = running.recorder.len();
        let mut spans = with_network_fault(&proxy, Network::HalfOpen, &hasty, running);
        let seen = running.recorder.since(first);
        let waited = |seen: &&crate::record::RecordedDecision| {
            seen.node == 0 && seen.mode != Mode::Exact && seen.took() >= DEFAULT_DEADLINE
        };
        let value = seen.iter().filter(waited).count() as u64;
        let what = "requests that waited";
        spans.measures.push(Measure { what, unit: Unit::Times, value, most: WAITING });
        spans
    });
    rig.found(immortal(&server));
}

/// A network fault for the first node.
pub(super) fn with_network_fault<S: Node>(
    proxy: &Proxy,
    network: Network,
    fleet: &Fleet<S>,
    running: &Running,
) -> FaultSpans {
    let done = || {
        let counts = [&proxy.counts.swallowed_bytes, &proxy.counts.delayed, &proxy.counts.cut];
        counts.iter().map(|deed| deed.load(Ordering::Relaxed)).sum::<u64>()
    };
    let (outage, before) = (Outage::begin(running), done());
    proxy.set(network);
    let mut measures = Vec::new();
    if network == Network::HalfOpen {
        let shard = || fleet.engines[0].store().redis().report().shards.remove(0);
        until("the node knows", || (shard().state != BreakerState::Closed).then_some(()));
        measures.push(Measure::millis("known after", outage.lasted(), FOUND));
    }
    rest(FAULT_FOR);
    let refused =
        network == Network::Refuse && std::net::TcpStream::connect(("127.0.0.1", proxy.port)).is_err();
    let counts = done() - before + u64::from(refused);
    let began = outage.began;
    proxy.set(Network::Fair);
    let spans = outage.over(&[("byte swallowed, chunk delayed, connection cut or refused", counts)]);
    FaultSpans { alone: Some((began, spans.healthy)), measures, ..spans }
}

/// Nodes have wrong clocks, each by another amount.
fn skew(rig: &mut Rig) {
    let server = Server::redis();
    let mut fleet = rig.fleet([&server.url(); 3]);
    fleet.skews = SKEWS.to_vec();
    rig.run("clocks of nodes 5 s behind and ahead", UNNOTICED.numbered("F9"), &fleet, |running| {
        rest(FAULT_FOR);
        let wrong = fleet.skews.iter().filter(|skew| **skew != 0).count() as u64;
        let evidence = vec![("node with a wrong clock".to_owned(), wrong)];
        FaultSpans { evidence, healthy: running.recorder.now(), ..FaultSpans::default() }
    });
    rig.found(immortal(&server));
}

/// The store's clock steps by an hour and by a few seconds, back and forth.
fn clocks(rig: &mut Rig) {
    let server = Plan::new(Program::Valkey).wrong_clock().start();
    let fleet = rig.fleet([&server.url(), &server.url(), &server.url()]);
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
            let measures = vec![first_admission(running, &losses)];
            let healthy = running.recorder.now();
            FaultSpans { evidence, losses, steps, healthy, measures, ..FaultSpans::default() }
        });
        rig.found(immortal(&server));
    }
}

/// The longest time that a hot key was denied after a step: a unit is refilled every 50 ms, and each node requests the
/// key every 100 ms.
fn first_admission(running: &Running, steps: &[(u64, u64)]) -> Measure {
    let seen = running.recorder.since(0);
    let mut longest = 0;
    for &(_, stepped) in steps {
        let mut first: BTreeMap<u32, u64> = BTreeMap::new();
        for one in seen.iter().filter(|one| one.admitted && one.sent >= stepped && one.key & QUIET_BIT == 0) {
            let earliest = first.entry(one.key).or_insert(one.replied);
            *earliest = one.replied.min(*earliest);
        }
        longest = first.values().map(|first| first - stepped).max().unwrap_or(u64::MAX).max(longest);
    }
    Measure::millis("first admission after a step", longest / 1_000, ADMITTED)
}
