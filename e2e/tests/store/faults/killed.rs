//! Leases in processes that are killed. Each node is a process on a real cluster. What all of them admitted, also the
//! killed ones, is checked together; without a refill every single unit is accounted for.

mod child;
mod ledger;
mod quotas;

use std::time::Duration;

use tollgate::{CheckRequest, Clock, Engine, Source};

use super::progress;
use crate::checker::{Bucket, Log};
use crate::cluster::Cluster;
use crate::record::{Mode, RecordedDecision};
use crate::server::{Program, Server};
use crate::store::{Shared, connect, new_runtime, secret};
use child::{Part, Process, ShutdownReport, is_child, wall};
use ledger::Line;
use quotas::{Algorithm, KINDS, Kind, ONCE, SECONDLY, TTL, policy};
use tollgate_testkit::{Scratch, rest, until};

/// Requests per second of each process: some get far more than others.
const RATES: [u32; NODES] = [1_600, 1_000, 600, 400, 250, 150];
const NODES: usize = 6;
const CONCURRENCY: u32 = 16;
/// How long a process is stopped, well beyond the lifetime of a lease.
const STALL: Duration = Duration::from_millis(700);
const PERIOD: u64 = 1_000_000;

/// One fault of processes, its promise and its measurement.
#[derive(Debug, Default)]
struct Row {
    number: &'static str,
    name: &'static str,
    /// Each must be above zero.
    evidence: Vec<(&'static str, u64)>,
    decisions: String,
    /// The measured value, and its maximum.
    measures: Vec<(&'static str, i64, i64)>,
}

impl Row {
    /// Prints its line. Fails if a promise was broken.
    fn check(&self) {
        let evidence: Vec<String> =
            self.evidence.iter().map(|(what, count)| format!("{count} × {what}")).collect();
        let measures: Vec<String> =
            self.measures.iter().map(|(what, value, most)| format!("{what}: {value} (≤ {most})")).collect();
        let Self { number, name, decisions, .. } = self;
        progress(&format!(
            "\n| {number} | {name} | {} | {decisions} | {} |",
            evidence.join(", "),
            measures.join("; ")
        ));
        let missing = self.evidence.iter().filter(|(_, count)| *count == 0);
        let broken = self.measures.iter().filter(|(_, value, most)| value > most);
        let missing: Vec<String> =
            missing.map(|(what, _)| format!("it did not happen: {what} is 0")).collect();
        let broken = broken.map(|(what, value, most)| format!("{what} is {value}, and may be {most}"));
        let wrong: Vec<String> = missing.into_iter().chain(broken).collect();
        assert!(wrong.is_empty(), "{number} {name}: {}", wrong.join("; "));
    }
}

/// Decisions by source.
fn sources(lines: &[Line]) -> String {
    let count = |source: Source| lines.iter().filter(|line| line.source == source).count();
    let known = [Source::Exact, Source::Lease, Source::DenyCache];
    let each: Vec<String> =
        known.map(|source| format!("{} {}", count(source), source.name())).into_iter().collect();
    let others = lines.iter().filter(|line| !known.contains(&line.source)).count();
    format!("{}: {}, {others} without the store", lines.len(), each.join(", "))
}

/// Of six processes two are killed and replaced, one is stopped for longer than its leases live, one shuts down. The
/// quota holds, to the unit where units can be counted.
#[test]
fn six_processes_keep_the_quota_while_some_die() {
    if is_child() {
        return;
    }
    let rounds = if std::env::var("TOLLGATE_FAULTS").is_ok() { 5 } else { 1 };
    let cluster = Cluster::calm(Program::Redis);
    let (folder, mut started) = (Scratch::in_memory(), 0);
    let mut start = |node: usize| {
        started += 1;
        Process::start(Part {
            test: "faults::killed::six_processes_keep_the_quota_while_some_die",
            url: cluster.url(),
            ledger: folder.path(&format!("ledger-{started}")),
            node: u8::try_from(node).unwrap(),
            at_once: CONCURRENCY,
            rate: RATES[node],
            kinds: 0..KINDS.len(),
        })
    };
    let mut fleet: Vec<Process> = (0..NODES).map(&mut start).collect();
    let (mut gone, mut held) = (Vec::new(), 0);
    rest(Duration::from_millis(1_500));
    for _ in 0..rounds {
        for (killed, stalled) in [(0, 3), (2, 4)] {
            fleet[killed].kill();
            held += fleet[killed].lines().last().unwrap().held;
            gone.push(std::mem::replace(&mut fleet[killed], start(killed)));
            fleet[stalled].signal("-STOP");
            rest(STALL);
            fleet[stalled].signal("-CONT");
            rest(STALL);
        }
    }
    let kills = gone.len() as u64;
    // One shuts down while the others continue, then all do.
    let mut farewells = vec![fleet[1].end()];
    rest(Duration::from_secs(1));
    farewells.extend([0, 2, 3, 4, 5].map(|node| fleet[node].end()));
    gone.extend(fleet);
    let lines: Vec<Line> = gone.iter().flat_map(Process::lines).collect();
    let sum = |each: fn(&ShutdownReport) -> u64| farewells.iter().map(each).sum::<u64>();
    let mut row = Row {
        number: "F11, F24",
        name: "of six servers some are killed -9, stopped, asked to end",
        evidence: vec![
            ("kill -9", kills),
            ("unit held by the killed", held),
            ("server stopped past its leases", kills),
            ("server that ended in order", farewells.len() as u64),
            ("unit given back", sum(|each| each.returned)),
        ],
        decisions: sources(&lines),
        ..Row::default()
    };
    let without = lines.iter().filter(|line| line.seen.mode != Mode::Exact).count();
    row.measures.push(("decisions without the store", i64::try_from(without).unwrap(), 0));
    row.measures.push(("units held by those who ended in order", amount(sum(|each| each.held)), 0));
    // Each leased unit was spent once, returned once, or lost.
    let astray: u64 =
        farewells.iter().map(|each| each.drawn.abs_diff(each.paid + each.returned + each.stranded)).sum();
    row.measures.push(("leased units that are unaccounted for", amount(astray), 0));
    bounds(&lines, &mut row);
    once(&lines, &cluster.url(), kills, &mut row);
    row.check();
    let admitted = lines.iter().filter(|line| line.seen.admitted);
    let paid = admitted.clone().filter(|line| line.source == Source::Lease).count();
    assert!(paid * 2 > admitted.count(), "only {paid} admissions were paid of what was held: {row:?}");
}

fn amount(units: u64) -> i64 {
    i64::try_from(units).unwrap()
}

fn of_kind(lines: &[Line], kind: usize) -> Vec<RecordedDecision> {
    lines.iter().map(|line| line.seen).filter(|seen| seen.key as usize == kind).collect()
}

/// With a refill: any interval admits what the quota allows and what was leased when it began. A new window starts with
/// its own units; leases from before do not count in it.
fn bounds(lines: &[Line], row: &mut Row) {
    for (place, kind) in KINDS.iter().enumerate().filter(|(_, kind)| kind.comes_back) {
        let seen = of_kind(lines, place);
        let held = amount(kind.most() * NODES as u64);
        let (over, most) = match kind.algorithm {
            Algorithm::TokenBucket | Algorithm::Gcra => {
                let bucket = Bucket { burst: SECONDLY, limit: SECONDLY, period: PERIOD };
                (bucket.excess(&seen, &[]).unwrap().units, held)
            }
            Algorithm::SlidingWindow => {
                (Log { limit: SECONDLY, window: PERIOD }.excess(&seen, &[]).unwrap().units, held)
            }
            Algorithm::FixedWindow => (worst_window(&seen) - amount(SECONDLY), 0),
        };
        row.measures.push((above(kind), over, most));
    }
}

/// The maximum admitted in a window that begins with a second.
fn worst_window(seen: &[RecordedDecision]) -> i64 {
    let mut windows = std::collections::BTreeMap::new();
    let inside = |seen: &&RecordedDecision| seen.admitted && seen.sent / PERIOD == seen.replied / PERIOD;
    for one in seen.iter().filter(inside) {
        *windows.entry(one.sent / PERIOD).or_insert(0) += 1;
    }
    windows.values().copied().max().unwrap_or_default()
}

fn above(kind: &Kind) -> &'static str {
    match kind.algorithm {
        Algorithm::TokenBucket => "token-bucket, units above burst and refill",
        Algorithm::Gcra => "gcra, units above burst and refill",
        Algorithm::FixedWindow => "fixed-window, units above the limit",
        Algorithm::SlidingWindow => "sliding-window, units above the limit",
    }
}

/// Without a refill: admitted and remaining units are no more than the capacity, and the difference is at most what the
/// killed processes held or were acquiring. With a refill, all of it is there again a little later.
fn once(lines: &[Line], url: &str, kills: u64, row: &mut Row) {
    let runtime = new_runtime();
    let _inside = runtime.enter();
    let exact: Engine<Shared> =
        Engine::builder().policy(policy()).store(connect(url)).secret(secret()).build();
    let clock = Clock::precise();
    let left = |kind: &Kind| {
        let request = CheckRequest::new().with("kind", kind.name).unwrap().with("key", "one").unwrap();
        let look = runtime.block_on(exact.operator().peek(&request, clock.now()));
        look.limits().next().unwrap().outcome.remaining
    };
    let (mut over, mut stranded, mut most) = (i64::MIN, i64::MIN, 0);
    for (place, kind) in KINDS.iter().enumerate().filter(|(_, kind)| !kind.comes_back) {
        let admitted = of_kind(lines, place).iter().filter(|seen| seen.admitted).count() as u64;
        assert!(admitted > ONCE / 4, "{}: only {admitted} were admitted", kind.name);
        let missing = amount(ONCE) - amount(admitted) - amount(left(kind));
        (over, stranded) = (over.max(-missing), stranded.max(missing));
        most = amount(kills * (kind.most() + u64::from(CONCURRENCY)));
    }
    row.measures.push(("units above what there was", over, 0));
    row.measures.push(("units stranded, worst key", stranded, most));
    for kind in KINDS.iter().filter(|kind| kind.comes_back) {
        until("what was stranded has come back", || (left(kind) == SECONDLY).then_some(()));
    }
}

/// A process that was stopped for longer than its lease lives spends none of it afterwards: the units are returned.
#[test]
fn stopped_process_spends_no_expired_lease() {
    if is_child() {
        return;
    }
    let server = Server::redis();
    let folder = Scratch::in_memory();
    // One request at a time for one key without a refill, so that each unit belongs to a known lease.
    let mut process = Process::start(Part {
        test: "faults::killed::stopped_process_spends_no_expired_lease",
        url: server.url(),
        ledger: folder.path("ledger"),
        node: 0,
        at_once: 1,
        rate: 400,
        kinds: 4..5,
    });
    let mut stalls = Vec::new();
    for _ in 0..3 {
        rest(Duration::from_millis(600));
        process.signal("-STOP");
        let stopped = wall();
        rest(STALL);
        let woke = wall();
        process.signal("-CONT");
        stalls.push((stopped, woke));
    }
    rest(Duration::from_millis(300));
    let shutdown_report = process.end();
    let lines = process.lines();
    let (mut spent, mut held) = (0, 0);
    for (stopped, woke) in stalls {
        assert!(woke - stopped > TTL.as_micros());
        let before = lines.iter().rfind(|line| line.seen.replied < stopped).unwrap();
        held += before.held;
        let old = |line: &&Line| {
            line.seen.sent >= woke && line.source == Source::Lease && line.drawn == before.drawn
        };
        spent += lines.iter().filter(old).count() as u64;
    }
    let row = Row {
        number: "S16",
        name: "a server stopped past its leases, three times",
        evidence: vec![
            ("unit held when it was stopped", held),
            ("unit given back", shutdown_report.returned),
        ],
        decisions: sources(&lines),
        measures: vec![("units spent after their lease had ended, before it was renewed", amount(spent), 0)],
    };
    row.check();
}
