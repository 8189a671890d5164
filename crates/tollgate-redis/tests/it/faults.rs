//! Real faults on real servers, under load, with every promise measured.
//!
//! A short run is part of every `cargo test`. `TOLLGATE_FAULTS=all` runs all of them, as `./test --long` does, and other words, with `|`
//! between them, those whose names hold one. A fault that was not seen to happen fails the run: a test that hurts nobody proves nothing.

mod bare;
mod clustered;
mod evict;
mod herd;
mod judge;
mod killed;
mod leased;
mod outage;
mod partition;
mod replies;
mod report;
mod watched;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Runtime;
use tollgate::{Engine, MemoryStore};
use tollgate_redis::Settings;

use crate::bystander::Bystander;
use crate::fleet::{EXACT, Fleet, Load, Running, policy};
use crate::record::Mode;
use crate::scratch::{alone, rest, until};
use crate::store::{Node, Shared, new_runtime, ready, secret, settings};
use judge::{Happened, Judged, judge};
use report::{Promise, Row, table};

/// How long a decision waits for the store: as long as a setting allows, since a busy machine takes its time.
pub(crate) const DEADLINE: Duration = Duration::from_millis(50);
/// Nodes of the fleet.
const NODES: usize = 3;
/// How long a run goes on before the fault, and after it at least and at most.
const BEFORE: Duration = Duration::from_millis(1_000);
const AFTER: Duration = Duration::from_millis(500);
const AFTER_MAX: Duration = Duration::from_secs(15);
/// How long the store is seen without a gap before all is called well.
const CALM: Duration = Duration::from_millis(750);
/// What a machine that stands still does to a store that nothing is wrong with: its breaker opens, and this much later all is well.
const RELAPSE: Duration = Duration::from_secs(2);
/// Decisions a second, in a build for debugging beside other work and in the release build.
const GENTLE: u64 = 600;
const FULL: u64 = 2_000;

/// Where faults are tried, and what came of them.
struct Rig {
    runtime: Runtime,
    bystander: Bystander,
    rate: u64,
    /// Words of which the name of a fault must hold one.
    wanted: Vec<String>,
    rows: Vec<Row>,
}

impl Rig {
    fn new(rate: u64, wanted: Vec<String>) -> Self {
        let runtime = new_runtime();
        // A decision goes the bystander's way several times: it waits in line, and may be sent twice.
        let bystander = Bystander::watch(&runtime, DEADLINE / 4);
        Self { runtime, bystander, rate, wanted, rows: Vec::new() }
    }

    /// Nodes of one fleet, each by its own way to the store, in a hurry. Returns once the store answers all of them.
    fn fleet(&self, urls: [&str; NODES]) -> Fleet<Shared> {
        self.fleet_of(urls.map(|url| settings(url).deadline(DEADLINE).unwrap()))
    }

    /// Nodes as they are by default: five milliseconds for the store, fifteen for a decision.
    fn default_fleet(&self, urls: [&str; NODES]) -> Fleet<Shared> {
        let mut fleet = self.fleet_of(urls.map(settings));
        fleet.late = Duration::from_millis(30);
        fleet
    }

    fn fleet_of(&self, settings: impl IntoIterator<Item = Settings>) -> Fleet<Shared> {
        let _inside = self.runtime.enter();
        let engine = |settings| Engine::with_store(policy(&EXACT), ready(settings), secret());
        let fleet = Fleet::new(settings.into_iter().map(engine).collect());
        self.await_peers(&fleet);
        fleet
    }

    /// Returns once the nodes know of each other, and the store answers all of them.
    fn await_peers<S: Node>(&self, fleet: &Fleet<S>) {
        // Each one's share depends on it.
        until("the nodes have counted each other", || {
            let knows =
                |engine: &Arc<Engine<S>>| engine.store().redis().node_count() as usize >= fleet.engines.len();
            fleet.engines.iter().all(knows).then_some(())
        });
        self.await_health(fleet, "before");
    }

    /// Waits until a short load is answered by the store alone.
    fn await_health<S: Node>(&self, fleet: &Fleet<S>, when: &str) {
        let mut turn = 0;
        until("the store answers every node", || {
            turn += 1;
            let running =
                fleet.ask(&self.runtime, &format!("health-{when}-{turn}"), Load::of(300, &fleet.terms));
            rest(Duration::from_millis(200));
            let seen = running.stop();
            let well = seen.len() > 20 && seen.iter().all(|seen| seen.mode == Mode::Exact);
            well.then_some(())
        });
    }

    /// One fault: load, then the fault while the load goes on, then the load until the store answers again; then the judgement.
    fn run<S: Node>(
        &mut self,
        name: &'static str,
        promise: Promise,
        fleet: &Fleet<S>,
        fault: impl FnOnce(&Running) -> Happened,
    ) {
        if !self.wanted.iter().any(|word| name.contains(word)) {
            return;
        }
        self.await_health(fleet, name);
        progress(&format!("{name}: begins"));
        let load = Load::of(self.rate, &fleet.terms);
        let before = failures(fleet);
        let running = fleet.ask(&self.runtime, name, load);
        rest(BEFORE);
        let mut happened = fault(&running);
        let calm = await_calm(&running);
        let (recorder, skipped) = (running.recorder.clone(), running.skipped.clone());
        let seen = running.stop();
        let mut sober = seen.clone();
        // How soon the store is back is the question where it was away, so there a relapse counts.
        let slack = if promise.stays_exact { RELAPSE } else { DEADLINE };
        let excused = self.bystander.excuse(&recorder, &mut sober, slack);
        happened.stood_still(&excused);
        // What was asked after the last look is judged, but says nothing about how soon all was well.
        sober.retain(|seen| seen.sent < calm);
        let judged = Judged { excused: excused.len(), ..judge(&seen, &sober, &happened, &fleet.terms) };
        let row = Row {
            name,
            promise,
            happened,
            judged,
            immortal: Vec::new(),
            late: fleet.late,
            terms: fleet.terms,
        };
        let skipped = skipped.load(std::sync::atomic::Ordering::Relaxed);
        progress(&format!("{name}: {:?}, {skipped} skipped, {:?}", row.judged, row.happened));
        let failed: Vec<String> = failures(fleet)
            .into_iter()
            .map(|(class, count)| (count - before.get(&class).unwrap_or(&0), class))
            .filter(|&(count, _)| count > 0)
            .map(|(count, class)| format!("{count} {class}"))
            .collect();
        progress(&format!("  calls that failed: {}", failed.join(", ")));
        self.rows.push(row);
    }

    /// After the last fault, these keys were found that would live for ever.
    fn found(&mut self, immortal: Vec<String>) {
        if let Some(row) = self.rows.last_mut() {
            row.immortal.extend(immortal);
        }
    }

    /// Prints the table, and fails if a promise was broken.
    fn finish(self) {
        let text = table(&self.rows);
        progress(&format!("\n{text}"));
        let broken: Vec<String> = self.rows.iter().flat_map(Row::broken).collect();
        assert!(broken.is_empty(), "broken promises:\n{}", broken.join("\n"));
    }
}

/// What the links of all nodes say went wrong so far, by class.
fn failures<S: Node>(fleet: &Fleet<S>) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for engine in &fleet.engines {
        for (class, count) in engine.store().redis().report().failures {
            *sums.entry(format!("{class:?}")).or_default() += count;
        }
    }
    sums
}

/// Goes on for a while, and until the store has answered everything for some time; but not for ever. When that was, by the record.
fn await_calm(running: &Running) -> u64 {
    rest(AFTER);
    let mut waited = AFTER;
    while waited < AFTER_MAX {
        let first = running.recorder.len();
        rest(CALM);
        waited += CALM;
        let seen = running.recorder.since(first);
        if seen.iter().all(|seen| seen.mode == Mode::Exact) {
            break;
        }
    }
    running.recorder.now()
}

#[allow(clippy::print_stdout, reason = "whoever waits for minutes wants to see where it is")]
fn progress(text: &str) {
    println!("{text}");
}

/// The rig can fail: three nodes that share nothing admit three times the burst, and are caught.
#[test]
fn nodes_that_share_nothing_are_caught() {
    let _quiet = alone();
    let runtime = new_runtime();
    let now = tollgate::Clock::precise().now();
    let engine = || Engine::with_store(policy(&EXACT), MemoryStore::new(1 << 20, now), secret());
    let fleet = Fleet::new(vec![engine(), engine(), engine()]);
    let running = fleet.ask(&runtime, "apart", Load::of(GENTLE, &EXACT));
    rest(Duration::from_secs(3));
    let seen = running.stop();
    let judged = judge(&seen, &seen, &Happened::default(), &EXACT);
    assert!(judged.broken_exact > 5, "{judged:?}");
    let shared = Arc::new(engine());
    let fleet = Fleet::of(vec![shared; 3]);
    let running = fleet.ask(&runtime, "together", Load::of(GENTLE, &EXACT));
    rest(Duration::from_millis(1_500));
    let seen = running.stop();
    let judged = judge(&seen, &seen, &Happened::default(), &EXACT);
    assert!(judged.broken_exact <= 0 && judged.unexplained == 0, "{judged:?}");
}

/// What every commit must survive; and, when told so, everything.
#[test]
fn promises_are_kept_under_faults() {
    let _quiet = alone();
    let wanted = std::env::var("TOLLGATE_FAULTS").ok();
    let all = wanted.is_some();
    let words = wanted.filter(|wanted| wanted != "all").unwrap_or_default();
    let rate = if cfg!(debug_assertions) { GENTLE } else { FULL };
    let mut rig = Rig::new(rate, words.split('|').map(str::to_owned).collect());
    clustered::short(&mut rig);
    leased::short(&mut rig);
    if all {
        leased::long(&mut rig);
        clustered::long(&mut rig);
        partition::long(&mut rig);
        watched::long(&mut rig);
        bare::long(&mut rig);
        replies::long(&mut rig);
        evict::long(&mut rig);
        herd::long(&mut rig);
    }
    rig.finish();
}
