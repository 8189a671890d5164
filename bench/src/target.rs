//! The promises about Tollgate's speed beside the others, and whether a run kept them.

use std::fmt::Write as _;

use crate::contender::Kind;
use crate::report::{Results, plural, short};
use crate::workload::Workload;

/// One promise, for one workload.
#[derive(Clone, Copy, Debug)]
struct Target {
    workload: Workload,
    ours: Kind,
    theirs: Kind,
    bound: Bound,
}

#[derive(Clone, Copy, Debug)]
enum Bound {
    /// At least so many times as fast.
    Faster(f64),
    /// At most so many times as long.
    Longer(f64),
}

const fn faster(workload: Workload, ours: Kind, times: f64) -> Target {
    Target { workload, ours, theirs: Kind::GovernorString, bound: Bound::Faster(times) }
}

const fn near_lower_bound(workload: Workload) -> Target {
    Target { workload, ours: Kind::Tollgate, theirs: Kind::LowerBound, bound: Bound::Longer(1.5) }
}

const TARGETS: &[Target] = &[
    faster(Workload::Uniform1M, Kind::Tollgate, 5.0),
    faster(Workload::Zipf1M, Kind::Tollgate, 5.0),
    faster(Workload::Hot, Kind::Tollgate, 2.0),
    faster(Workload::HotAdmitted, Kind::Tollgate, 2.0),
    faster(Workload::Uniform1M, Kind::TollgateBatch, 10.0),
    near_lower_bound(Workload::Hot),
    near_lower_bound(Workload::HotAdmitted),
    near_lower_bound(Workload::Uniform1M),
    near_lower_bound(Workload::Zipf1M),
    near_lower_bound(Workload::Uniform10M),
];

/// A row for each target and number of threads, kept or not.
#[must_use]
pub fn table(results: &Results, threads: &[usize]) -> String {
    let mut text = String::from("| target | workload | threads | measured | |\n|---|---|---:|---:|---|\n");
    for target in TARGETS {
        for &count in threads {
            let _ = writeln!(text, "{}", row(results, target, count));
        }
    }
    text
}

fn row(results: &Results, target: &Target, threads: usize) -> String {
    let Target { workload, ours, theirs, bound } = *target;
    let ratio = results.ratio(workload, threads, ours, theirs);
    let (ours, theirs, workload) = (ours.name(), theirs.name(), workload.title());
    let (promise, measured, kept) = match bound {
        Bound::Faster(times) => {
            (format!("{ours} ≥ {times} × {theirs}"), ratio, ratio.map(|ratio| ratio >= times))
        }
        Bound::Longer(times) => {
            let longer = ratio.map(|ratio| 1.0 / ratio);
            (format!("{ours} ≤ {times} × the time of {theirs}"), longer, longer.map(|longer| longer <= times))
        }
    };
    let measured = measured.map_or_else(|| "–".to_owned(), |number| format!("{}×", short(number)));
    format!("| {promise} | {workload} | {} | {measured} | {} |", plural(threads), verdict(kept))
}

/// A word for the last column.
#[must_use]
pub const fn verdict(kept: Option<bool>) -> &'static str {
    match kept {
        Some(true) => "reached",
        Some(false) => "**missed**",
        None => "not measured",
    }
}
