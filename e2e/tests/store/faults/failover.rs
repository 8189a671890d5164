//! A primary behind sentinels dies, and the next one may have another time.

use std::sync::Arc;

use tollgate::Engine;

use super::Rig;
use super::assessment::FaultSpans;
use super::clustered::FAILOVER;
use super::outage::Outage;
use super::report::{Measure, Promise};
use super::standalone::immortal;
use crate::fleet::{Fleet, Running};
use crate::sentinel::SentinelSetup;
use crate::server::{Plan, Program};
use crate::store::Shared;
use tollgate_testkit::until;

/// Milliseconds after the promotion within which the nodes find the new primary.
const FOUND: u64 = 1_000;

pub(super) fn long(rig: &mut Rig) {
    let mut watched = SentinelSetup::start();
    let fleet = rig.fleet([&watched.url(); 3]);
    rig.run("kill -9 behind sentinels", FAILOVER, &fleet, |running| kill(&mut watched, &fleet, running));
    rig.found(watched.servers.iter().flat_map(immortal).collect());
    drop((fleet, watched));
    skewed(rig);
}

/// The clocks of two stores differ by five seconds: the next primary is ahead, and the old one, when it is back,
/// behind.
fn skewed(rig: &mut Rig) {
    let mut watched = SentinelSetup::with(&Plan::new(Program::Valkey).wrong_clock());
    watched.servers[1].step_clock(5);
    let fleet = rig.fleet([&watched.url(); 3]);
    let promise = Promise { steps: true, ..FAILOVER.numbered("F9b") };
    for name in ["kill -9, the next clock 5 s ahead", "kill -9, the next clock 5 s behind"] {
        rig.run(name, promise, &fleet, |running| {
            let spans = kill(&mut watched, &fleet, running);
            let off = watched.servers[0].time().abs_diff(watched.servers[1].time()) / 1_000;
            // The clock step, beside what was lost.
            let (steps, losses) = (vec![spans.losses[0].0], [&spans.losses[..]; 2].concat());
            let evidence = [spans.evidence.clone(), vec![("millisecond between the clocks".to_owned(), off)]];
            FaultSpans { steps, losses, evidence: evidence.concat(), ..spans }
        });
        rig.found(watched.servers.iter().flat_map(immortal).collect());
    }
}

fn kill(watched: &mut SentinelSetup, fleet: &Fleet<Shared>, running: &Running) -> FaultSpans {
    let outage = Outage::begin(running);
    let old = watched.servers.iter().position(|server| server.port == watched.primary()).unwrap();
    let new = 1 - old;
    watched.servers[old].kill();
    until("the replica is promoted", || (watched.servers[new].info("role")? == "master").then_some(()));
    // Only one sentinel has done it; the others are not informed yet.
    until("the sentinels name it", || (watched.primary() == watched.servers[new].port).then_some(()));
    let promoted = running.recorder.now();
    let took = outage.lasted();
    until("the nodes have found it", || {
        let found = |engine: &Arc<Engine<Shared>>| engine.store().0.report().shards[0].is_connected;
        fleet.engines.iter().all(found).then_some(())
    });
    let found = (running.recorder.now() - promoted) / 1_000;
    let lost = vec![(outage.began, running.recorder.now())];
    watched.servers[old].restart();
    until("the old one follows", || {
        let server = &watched.servers[old];
        (server.info("role")? == "slave" && server.info("master_link_status")? == "up").then_some(())
    });
    let spans = outage.over(&[("promotion", 1), ("millisecond until it", took)]);
    let measures = vec![Measure::millis("new primary found after the promotion", found, FOUND)];
    FaultSpans { losses: lost, healthy: promoted, measures, ..spans }
}
