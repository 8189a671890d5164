//! Compares the libraries: decisions a second of every contender, interleaved round by round, and the targets.

use std::path::PathBuf;

use tollgate_bench::arguments::Arguments;
use tollgate_bench::clock::CachedClock;
use tollgate_bench::contender::{Contender, Kind};
use tollgate_bench::measure::{self, Timing};
use tollgate_bench::report::{Results, plural, short};
use tollgate_bench::workload::{self, Workload};
use tollgate_bench::{Failure, machine, target};

/// The arguments.
struct Plan {
    rounds: usize,
    threads: Vec<usize>,
    timing: Timing,
    workloads: Vec<Workload>,
    kinds: Vec<Kind>,
    csv: Option<PathBuf>,
}

fn main() -> Result<(), Failure> {
    let plan = Plan::read()?;
    println!("{}\n", machine::describe());
    for kind in &plan.kinds {
        kind.verify()?;
    }
    eprintln!("all {} contenders limit as they should", plan.kinds.len());

    let mut results = Results::default();
    let clock = CachedClock::beating();
    for &workload in &plan.workloads {
        measure(&plan, workload, &clock, &mut results)?;
    }
    print(&plan, &results);
    if let Some(path) = &plan.csv {
        std::fs::write(path, results.csv()).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(())
}

impl Plan {
    fn read() -> Result<Self, Failure> {
        let arguments = Arguments::read(&["quick"], &["rounds", "only", "workloads", "threads", "csv"])?;
        let quick = arguments.has("quick");
        let workloads: Vec<Workload> = Workload::ALL
            .into_iter()
            .filter(|workload| arguments.selects("workloads", workload.name()))
            .filter(|workload| {
                !quick || arguments.text("workloads").is_some() || *workload != Workload::Uniform10M
            })
            .collect();
        let kinds: Vec<Kind> =
            Kind::BUILT.iter().copied().filter(|kind| arguments.selects("only", kind.name())).collect();
        if workloads.is_empty() || kinds.is_empty() {
            let names: Vec<&str> = Workload::ALL.iter().map(|workload| workload.name()).collect();
            let contenders: Vec<&str> = Kind::BUILT.iter().map(|kind| kind.name()).collect();
            let (names, contenders) = (names.join(", "), contenders.join(", "));
            return Err(
                format!("nothing is left to measure; workloads: {names}; contenders: {contenders}").into()
            );
        }
        Ok(Self {
            rounds: arguments.count("rounds", if quick { 1 } else { 5 })?,
            threads: arguments.counts("threads", &[1, 2])?,
            timing: if quick { Timing::QUICK } else { Timing::FULL },
            workloads,
            kinds,
            csv: arguments.text("csv").map(PathBuf::from),
        })
    }
}

/// Builds every contender, fills it with the workload's keys, then measures them in turn, round by round.
fn measure(
    plan: &Plan,
    workload: Workload,
    clock: &CachedClock,
    results: &mut Results,
) -> Result<(), Failure> {
    let sequence = workload.sequence();
    let mut contenders: Vec<(Kind, Box<dyn Contender>)> = Vec::new();
    for &kind in plan.kinds.iter().filter(|kind| kind.holds(workload.keys())) {
        eprintln!("{}: filling {}", workload.title(), kind.name());
        let contender = kind.build(workload.quota(), workload.keys(), clock)?;
        workload::fill(contender.as_ref(), workload.keys());
        contenders.push((kind, contender));
    }
    for round in 0..plan.rounds {
        for &threads in &plan.threads {
            for place in 0..contenders.len() {
                // The order rotates, so that nobody always runs after the same neighbour.
                let (kind, contender) = &contenders[(place + round) % contenders.len()];
                let sample = measure::sample(contender.as_ref(), &sequence, threads, plan.timing);
                results.add(workload, threads, *kind, sample);
                eprintln!(
                    "{}: round {} of {}, {}, {}: {} M/s",
                    workload.title(),
                    round + 1,
                    plan.rounds,
                    plural(threads),
                    kind.name(),
                    short(sample.per_second / 1e6),
                );
            }
        }
    }
    Ok(())
}

fn print(plan: &Plan, results: &Results) {
    println!(
        "### Million decisions a second: median of {} rounds (least–most)\n\n{}",
        plan.rounds,
        results.speeds()
    );
    for other in [Kind::GovernorString, Kind::LowerBound] {
        let name = other.name();
        println!("### Times as fast as {name}: median of the rounds' ratios\n\n{}", results.ratios(other));
    }
    println!("### Targets\n\n{}", target::table(results, &plan.threads));
    println!("### Share of requests admitted\n\n{}", results.admissions());
}
