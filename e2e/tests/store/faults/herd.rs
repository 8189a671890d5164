//! Many nodes reconnect to their store at the same moment.

use std::time::Duration;

use tokio::time::Instant;

use super::assessment::FaultSpans;
use super::outage::Outage;
use super::report::{AWAY, Measure, Promise, Unit};
use super::{DEADLINE, Rig};
use crate::fleet::{Fleet, Running};
use crate::record::{Mode, RecordedDecision};
use crate::server::Server;
use crate::store::{Shared, settings};
use tollgate_testkit::rest;

/// Number of nodes. Each has its own connections, breaker and random numbers, as a process has.
const NODES: usize = 50;
/// How long the store is away.
const AWAY_FOR: Duration = Duration::from_secs(2);
/// How long the nodes are observed afterwards, and how often.
const RUSH: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Observations per second.
const SECOND: usize = 20;
/// Connections that a node may make per second.
const CONNECTS: u64 = 20;
/// An answer faster than this, in microseconds, is never slow: it is the default deadline.
const QUICK: u64 = 5_000;

const HERD: Promise = Promise { number: "F13", back: Some([2_000, 2_000, 5_000]), ..AWAY };

pub(super) fn long(rig: &mut Rig) {
    let mut server = Server::redis();
    let url = server.url();
    let fleet = rig.fleet_of((0..NODES).map(|_| settings(&url).deadline(DEADLINE).unwrap()));
    rig.run("50 nodes after a restart", HERD, &fleet, |running| restart(&mut server, &fleet, running));
    rig.found(super::standalone::immortal(&server));
}

/// The 99th percentile of the store's answers in a span.
fn p99(seen: &[RecordedDecision], from: u64, to: u64) -> u64 {
    let inside = seen.iter().filter(|seen| seen.mode == Mode::Exact && (from..to).contains(&seen.sent));
    let mut took: Vec<u64> = inside.map(RecordedDecision::took).collect();
    took.sort_unstable();
    took.get(took.len() * 99 / 100).copied().unwrap_or(u64::MAX)
}

fn restart(server: &mut Server, fleet: &Fleet<Shared>, running: &Running) -> FaultSpans {
    let outage = Outage::begin(running);
    let usual = p99(&running.recorder.since(0), 0, outage.began);
    let began = outage.began;
    server.kill();
    rest(AWAY_FOR);
    server.restart();
    let spans = outage.over_empty(&[]);
    let counts = connections(server);
    let busiest = counts.windows(SECOND).map(|looks| looks[SECOND - 1] - looks[0]).max().unwrap_or_default();
    let rush = p99(&running.recorder.since(0), spans.healthy, running.recorder.now());
    let made = counts.last().copied().unwrap_or_default();
    let connects = busiest.div_ceil(fleet.engines.len() as u64);
    let measures = vec![
        Measure { what: "connects of a node a second", unit: Unit::Times, value: connects, most: CONNECTS },
        Measure {
            what: "p99 of the store in the first 5 s",
            unit: Unit::Micros,
            value: rush,
            most: (2 * usual).max(QUICK),
        },
    ];
    let mut evidence = vec![("connection made".to_owned(), made)];
    evidence.extend(spans.evidence);
    FaultSpans { evidence, losses: vec![(began, spans.healthy)], measures, ..spans }
}

/// Connections that the server has accepted by each observation.
fn connections(server: &Server) -> Vec<u64> {
    let mut connection = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
    let (mut counts, end) = (Vec::new(), Instant::now() + RUSH);
    while Instant::now() < end {
        let text: String = redis::cmd("INFO").arg("stats").query(&mut connection).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("total_connections_received:"));
        counts.push(line.unwrap().trim().parse().unwrap());
        rest(LOOK_EVERY);
    }
    counts
}
