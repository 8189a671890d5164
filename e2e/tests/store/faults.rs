//! Real faults on real servers, under load, with every promise measured.
//!
//! A short run is part of every `cargo test`. `TOLLGATE_FAULTS=all` runs all of them, as `./test --long` does; other
//! words, separated by `|`, select faults by name. A fault that was not observed fails the run, because it proves
//! nothing.

mod assessment;
mod clustered;
mod evict;
mod failover;
mod herd;
mod killed;
mod leased;
mod outage;
mod partition;
mod replies;
mod report;
mod standalone;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Runtime;
use tollgate::{Engine, MemoryStore};
use tollgate_redis::Settings;

use crate::bystander::Bystander;
use crate::fleet::{EXACT, Fleet, Load, Running, policy};
use crate::record::Mode;
use crate::store::{Node, Shared, new_runtime, ready, secret, settings};
use assessment::{Assessment, FaultSpans, assess};
use report::{Promise, Row, table};
use tollgate_testkit::{rest, until};

/// The deadline of a decision: the maximum allowed, because the machine may be busy.
pub(crate) const DEADLINE: Duration = Duration::from_millis(50);
/// Nodes of the fleet.
const NODES: usize = 3;
/// How long a run lasts before the fault, and at least and at most after it.
const BEFORE: Duration = Duration::from_millis(1_000);
const AFTER: Duration = Duration::from_millis(500);
const AFTER_MAX: Duration = Duration::from_secs(15);
/// How long the store must answer everything before it counts as recovered.
const CALM: Duration = Duration::from_millis(750);
/// How long a store needs to recover after the machine stalled and its breaker opened.
const RELAPSE: Duration = Duration::from_secs(2);
/// Decisions per second, in a debug build beside other work and in a release build.
const GENTLE: u64 = 600;
const FULL: u64 = 2_000;

/// Runs faults and collects their results.
struct Rig {
    runtime: Runtime,
    bystander: Bystander,
    rate: u64,
    /// A fault runs if its name contains one of these words.
    wanted: Vec<String>,
    rows: Vec<Row>,
}

impl Rig {
    fn new(rate: u64, wanted: Vec<String>) -> Self {
        let runtime = new_runtime();
        // A decision takes several round trips of the bystander: it is queued, and may be sent twice.
        let bystander = Bystander::watch(&runtime, DEADLINE / 4);
        Self { runtime, bystander, rate, wanted, rows: Vec::new() }
    }

    /// Nodes of one fleet, each with its own URL. Returns once the store answers all of them.
    fn fleet(&self, urls: [&str; NODES]) -> Fleet<Shared> {
        self.fleet_of(urls.map(|url| settings(url).deadline(DEADLINE).unwrap()))
    }

    /// Nodes with the default deadlines: five milliseconds for the store, fifteen for a decision.
    fn default_fleet(&self, urls: [&str; NODES]) -> Fleet<Shared> {
        let mut fleet = self.fleet_of(urls.map(settings));
        fleet.late = Duration::from_millis(30);
        fleet
    }

    fn fleet_of(&self, settings: impl IntoIterator<Item = Settings>) -> Fleet<Shared> {
        let _inside = self.runtime.enter();
        let engine = |settings| {
            Engine::builder().policy(policy(&EXACT)).store(ready(settings)).secret(secret()).build()
        };
        let fleet = Fleet::new(settings.into_iter().map(engine).collect());
        self.await_peers(&fleet);
        fleet
    }

    /// Waits until the nodes know each other and the store answers all of them.
    fn await_peers<S: Node>(&self, fleet: &Fleet<S>) {
        // The share of each node depends on it.
        until("the nodes have counted each other", || {
            let knows =
                |engine: &Arc<Engine<S>>| engine.store().redis().node_count() as usize >= fleet.engines.len();
            fleet.engines.iter().all(knows).then_some(())
        });
        self.await_health(fleet, "before");
    }

    /// Waits until the store answers a short load completely.
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

    /// Runs one fault: load, the fault under load, then load until the store recovers. Then checks the record.
    fn run<S: Node>(
        &mut self,
        name: &'static str,
        promise: Promise,
        fleet: &Fleet<S>,
        fault: impl FnOnce(&Running) -> FaultSpans,
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
        let mut spans = fault(&running);
        let calm = await_calm(&running);
        let (recorder, skipped) = (running.recorder.clone(), running.skipped.clone());
        let seen = running.stop();
        let mut sober = seen.clone();
        // If the store was away, the recovery time is measured, so a relapse counts.
        let slack = if promise.stays_exact { RELAPSE } else { DEADLINE };
        let excused = self.bystander.excuse(&recorder, &mut sober, slack);
        spans.stood_still(&excused);
        // Decisions after the last check are checked too, but do not affect the recovery time.
        sober.retain(|seen| seen.sent < calm);
        let assessment = Assessment { excused: excused.len(), ..assess(&seen, &sober, &spans, &fleet.terms) };
        let row = Row {
            name,
            promise,
            spans,
            assessment,
            immortal: Vec::new(),
            late: fleet.late,
            terms: fleet.terms,
        };
        let skipped = skipped.load(std::sync::atomic::Ordering::Relaxed);
        progress(&format!("{name}: {:?}, {skipped} skipped, {:?}", row.assessment, row.spans));
        let failed: Vec<String> = failures(fleet)
            .into_iter()
            .map(|(class, count)| (count - before.get(&class).unwrap_or(&0), class))
            .filter(|&(count, _)| count > 0)
            .map(|(count, class)| format!("{count} {class}"))
            .collect();
        progress(&format!("  calls that failed: {}", failed.join(", ")));
        self.rows.push(row);
    }

    /// Reports keys without an expiry that were found after the last fault.
    fn found(&mut self, immortal: Vec<String>) {
        if let Some(row) = self.rows.last_mut() {
            row.immortal.extend(immortal);
        }
    }

    /// Prints the table. Fails if a promise was broken.
    fn finish(self) {
        let text = table(&self.rows);
        progress(&format!("\n{text}"));
        let broken: Vec<String> = self.rows.iter().flat_map(Row::broken).collect();
        assert!(broken.is_empty(), "broken promises:\n{}", broken.join("\n"));
    }
}

/// The failures of all nodes so far, by class.
fn failures<S: Node>(fleet: &Fleet<S>) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for engine in &fleet.engines {
        for (class, count) in engine.store().redis().report().failures {
            *sums.entry(format!("{class:?}")).or_default() += count;
        }
    }
    sums
}

/// Waits until the store has answered everything for some time, within bounds. Returns when that began.
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

#[allow(clippy::print_stdout, reason = "a run of minutes shows its progress")]
fn progress(text: &str) {
    println!("{text}");
}

/// The rig can fail: three nodes without a shared store admit three times the burst, and the checker sees it.
#[test]
fn nodes_without_a_shared_store_are_caught() {
    let runtime = new_runtime();
    let now = tollgate::Clock::precise().now();
    let engine = || {
        Engine::builder()
            .policy(policy(&EXACT))
            .store(MemoryStore::new(1 << 20, now))
            .secret(secret())
            .build()
    };
    let fleet = Fleet::new(vec![engine(), engine(), engine()]);
    let running = fleet.ask(&runtime, "apart", Load::of(GENTLE, &EXACT));
    rest(Duration::from_secs(3));
    let seen = running.stop();
    let assessment = assess(&seen, &seen, &FaultSpans::default(), &EXACT);
    assert!(assessment.broken_exact > 5, "{assessment:?}");
    let shared = Arc::new(engine());
    let fleet = Fleet::of(vec![shared; 3]);
    let running = fleet.ask(&runtime, "together", Load::of(GENTLE, &EXACT));
    rest(Duration::from_millis(1_500));
    let seen = running.stop();
    let assessment = assess(&seen, &seen, &FaultSpans::default(), &EXACT);
    assert!(assessment.broken_exact <= 0 && assessment.unexplained == 0, "{assessment:?}");
}

/// Runs the faults of every commit and, if requested, all of them.
#[test]
fn promises_are_kept_under_faults() {
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
        failover::long(&mut rig);
        standalone::long(&mut rig);
        replies::long(&mut rig);
        evict::long(&mut rig);
        herd::long(&mut rig);
    }
    rig.finish();
}
