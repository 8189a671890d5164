//! The accuracy report in Markdown: how the decisions of each algorithm differ from the exact log on seeded traffic, and
//! what a caller gets in the worst window. Every number is counted, none is estimated.

use std::collections::VecDeque;
use std::fmt::Write;

use tollgate::algorithm::fixed_window::{Align, FixedWindow};
use tollgate::algorithm::sliding_log::SlidingLog;
use tollgate::algorithm::sliding_window::{Estimate, SlidingWindow};
use tollgate::{Quota, QuotaError, Rate, Ticks, Timestamp};

use super::workload::{Hit, Shape, trace};
use tollgate_sim::limiter::Limiter;

/// The window of every limit in the report.
const PERIOD: Ticks = Ticks::from_secs(60);
/// A midnight, so that windows of a minute and of a day begin here.
const START: Timestamp = Timestamp::from_unix_seconds(19_700 * 86_400);
/// Every workload lasts a day.
const LENGTH: Ticks = Ticks::from_secs(86_400);
/// Limits a minute that the report compares.
const LIMITS: [u64; 3] = [10, 100, 1_000];
/// The seed of every trace, so that the report is the same on every machine.
const SEED: u64 = 2_024;

/// The decisions on a trace under one quota.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// Whether each request was admitted.
    pub(crate) admitted: Vec<bool>,
    /// Units admitted.
    pub(crate) total: u64,
    /// The most units admitted in any window.
    pub(crate) worst: u64,
    /// Decisions that differ from those of an exact count of this run's own admissions.
    pub(crate) wrong: u64,
}

/// The exact reference: a sliding log.
///
/// # Errors
/// The limit is too large for a log.
pub(crate) fn reference(limit: u64) -> Result<Quota, QuotaError> {
    SlidingLog::new(Rate::per_ticks(limit, PERIOD)).map(Quota::SlidingLog)
}

/// The algorithms of the report with their names.
///
/// # Errors
/// One of the algorithms does not support the limit.
pub(crate) fn algorithms(limit: u64) -> Result<Vec<(&'static str, Quota)>, QuotaError> {
    let rate = Rate::per_ticks(limit, PERIOD);
    let fixed = |align| FixedWindow::new(rate, align).map(Quota::FixedWindow);
    let sliding =
        |precision, estimate| SlidingWindow::new(rate, precision, estimate).map(Quota::SlidingWindow);
    Ok(vec![
        ("fixed-window, epoch", fixed(Align::Epoch)?),
        ("fixed-window, first-hit", fixed(Align::FirstHit)?),
        ("sliding-window 1, interpolate", sliding(1, Estimate::Interpolate)?),
        ("sliding-window 10, interpolate", sliding(10, Estimate::Interpolate)?),
        ("sliding-window 10, strict", sliding(10, Estimate::Strict)?),
        ("sliding-log", reference(limit)?),
        ("gcra, burst = limit", Quota::gcra(rate)?),
        ("gcra, burst = limit / 10", Quota::gcra(rate.burst((limit / 10).max(1)))?),
    ])
}

/// Charges a fresh key with a trace.
#[must_use]
pub(crate) fn run(quota: &Quota, limit: u64, hits: &[Hit]) -> Run {
    let mut limiter = Limiter::new(quota.clone());
    let mut recent: VecDeque<Hit> = VecDeque::new();
    let mut inside = 0;
    let mut result = Run { admitted: Vec::with_capacity(hits.len()), total: 0, worst: 0, wrong: 0 };
    for hit in hits {
        while let Some(oldest) = recent.pop_front_if(|oldest| oldest.at + PERIOD <= hit.at) {
            inside -= oldest.cost;
        }
        let admitted = limiter.charge(hit.at, hit.cost).is_allowed();
        result.wrong += u64::from(admitted != (inside + hit.cost <= limit));
        result.admitted.push(admitted);
        if admitted {
            recent.push_back(*hit);
            inside += hit.cost;
            result.total += hit.cost;
            result.worst = result.worst.max(inside);
        }
    }
    result
}

/// The workloads of the report for a limit, with their titles.
fn workloads(limit: u64) -> [(&'static str, Shape); 6] {
    [
        ("Poisson, half the limit", Shape::Poisson { rate: limit / 2 }),
        ("Poisson, at the limit", Shape::Poisson { rate: limit }),
        ("Poisson, twice the limit", Shape::Poisson { rate: limit * 2 }),
        ("On and off: 15 s at six times the limit, then 75 s of silence", Shape::OnOff { rate: limit * 6 }),
        (
            "Diurnal: from 0.15 to 1.5 times the limit and back in a day",
            Shape::Diurnal { peak: limit * 3 / 2 },
        ),
        (
            "Straddling: 0.8 limits in the last 10 s of a minute, 0.8 in the first 10 s of the next",
            Shape::Straddling { burst: limit * 4 / 5 },
        ),
    ]
}

/// The tables: one for each workload, with a row for each limit and algorithm.
///
/// # Errors
/// An algorithm does not support a limit of the report.
pub(crate) fn tables() -> Result<String, QuotaError> {
    let mut text = String::new();
    for (workload, (title, _)) in workloads(LIMITS[0]).into_iter().enumerate() {
        // Writing to a string does not fail.
        let _ = writeln!(text, "### {title}\n");
        text.push_str(
            "| limit | algorithm | differs | wrong | admitted | worst |\n|---|---|---:|---:|---:|---:|\n",
        );
        for limit in LIMITS {
            let (_, shape) = workloads(limit)[workload];
            rows(&mut text, limit, &trace(shape, PERIOD, START, LENGTH, SEED))?;
        }
        text.push('\n');
    }
    Ok(text)
}

/// Writes a row for each algorithm, for one limit and trace.
fn rows(text: &mut String, limit: u64, hits: &[Hit]) -> Result<(), QuotaError> {
    let exact = run(&reference(limit)?, limit, hits);
    let decisions = hits.len() as u64;
    for (name, quota) in algorithms(limit)? {
        let run = run(&quota, limit, hits);
        let pairs = run.admitted.iter().zip(&exact.admitted);
        let differing = pairs.filter(|(ours, exact)| ours != exact).count() as u64;
        let _ = writeln!(
            text,
            "| {limit}/min | {name} | {} % | {} % | {} % | {} |",
            decimal(differing * 100, decisions, 3),
            decimal(run.wrong * 100, decisions, 3),
            decimal(run.total * 100, exact.total, 2),
            decimal(run.worst, limit, 2),
        );
    }
    Ok(())
}

/// The incident's limit a minute.
pub(crate) const INCIDENT_LIMIT: u64 = 5_000;
/// Requests on each side of the incident's boundary.
pub(crate) const INCIDENT_BURST: u64 = 4_000;

/// The incident: 4,000 requests spread evenly over the last 10 s of one minute, and 4,000 over the first 10 s of the next.
#[must_use]
pub(crate) fn incident_trace() -> Vec<Hit> {
    let first = START + Ticks::from_secs(50);
    let spacing = 10_000_000 / INCIDENT_BURST;
    let hit = |n| Hit { at: first + Ticks::from_micros(n * spacing), cost: 1 };
    (0..2 * INCIDENT_BURST).map(hit).collect()
}

/// The incident's table.
///
/// # Errors
/// An algorithm does not support the limit.
pub(crate) fn incident_table() -> Result<String, QuotaError> {
    let hits = incident_trace();
    let mut text =
        String::from("| algorithm | admitted of 8,000 | over the limit of 5,000 |\n|---|---:|---:|\n");
    for (name, quota) in algorithms(INCIDENT_LIMIT)? {
        let run = run(&quota, INCIDENT_LIMIT, &hits);
        let over = run.worst.saturating_sub(INCIDENT_LIMIT);
        let _ = writeln!(text, "| {name} | {} | {} % |", run.total, decimal(over * 100, INCIDENT_LIMIT, 1));
    }
    Ok(text)
}

/// Formats a ratio with a number of digits after the point, rounded to the nearest.
fn decimal(numerator: u64, denominator: u64, digits: u32) -> String {
    let scale = 10u64.pow(digits);
    let denominator = denominator.max(1);
    let scaled = (numerator * scale + denominator / 2) / denominator;
    let width = digits as usize;
    format!("{}.{:0width$}", scaled / scale, scaled % scale)
}
