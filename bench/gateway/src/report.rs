//! The tables. Ratios are taken within each round and the median of them is shown.

use std::cmp::Ordering;

use crate::contender::Kind;
use crate::load::Pace;

/// One measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub(crate) per_second: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    /// Processor time of the gateway for one request, and the share of its core that it took.
    pub(crate) processor_us: f64,
    pub(crate) busy: f64,
}

/// The results of one contender in all rounds.
#[derive(Debug)]
struct Row {
    kind: Kind,
    closed: Vec<Sample>,
    half: Vec<Sample>,
}

/// Everything measured in one run.
#[derive(Debug)]
pub(crate) struct Report {
    rounds: usize,
    idle: usize,
    pub(crate) half_load: f64,
    rows: Vec<Row>,
    memory: Vec<(Kind, u64, u64)>,
}

impl Report {
    pub(crate) const fn new(rounds: usize, idle: usize) -> Self {
        Self { rounds, idle, half_load: 0.0, rows: Vec::new(), memory: Vec::new() }
    }

    pub(crate) fn rested(&mut self, kind: Kind, before: u64, after: u64) {
        self.memory.push((kind, before, after));
    }

    pub(crate) fn add(&mut self, kind: Kind, pace: Pace, sample: Sample) {
        let place = self.rows.iter().position(|row| row.kind == kind).unwrap_or_else(|| {
            self.rows.push(Row { kind, closed: Vec::new(), half: Vec::new() });
            self.rows.len() - 1
        });
        match pace {
            Pace::Closed => self.rows[place].closed.push(sample),
            Pace::Open { .. } => self.rows[place].half.push(sample),
        }
    }

    pub(crate) fn print(&mut self) {
        self.rows.sort_by_key(|row| Kind::ALL.iter().position(|kind| *kind == row.kind));
        self.print_full();
        self.print_half();
        self.print_memory();
        self.print_targets();
    }

    fn row(&self, kind: Kind) -> Option<&Row> {
        self.rows.iter().find(|row| row.kind == kind)
    }

    fn print_full(&self) {
        println!(
            "#### As fast as it goes: 64 connections, medians of {} rounds\n\n\
| | requests a second (least–most) | tollgate beside it | processor µs a request | tollgate's beside it | its core busy | p99 µs |\n\
|---|---:|---:|---:|---:|---:|---:|",
            self.rounds
        );
        for row in &self.rows {
            let speeds = || row.closed.iter().map(|sample| sample.per_second);
            let is_direct = row.kind == Kind::Direct;
            println!(
                "| {} | {:.0} ({:.0}–{:.0}) | {} | {} | {} | {} | {:.0} |",
                row.kind.name(),
                median(speeds()),
                speeds().fold(f64::INFINITY, f64::min),
                speeds().fold(0.0, f64::max),
                times(self.beside(row.kind, |sample| sample.per_second)),
                shown(is_direct, median(row.closed.iter().map(|sample| sample.processor_us)), 2, ""),
                if is_direct {
                    "–".to_owned()
                } else {
                    times(self.beside(row.kind, |sample| sample.processor_us))
                },
                shown(is_direct, median(row.closed.iter().map(|sample| sample.busy * 100.0)), 0, " %"),
                median(row.closed.iter().map(|sample| sample.p99_us)),
            );
        }
    }

    fn print_half(&self) {
        println!(
            "\n#### Open loop, {:.0} a second: half of what the slowest can do\n\n\
| | p50 µs | p99 µs | p99 added to direct | processor µs a request |\n|---|---:|---:|---:|---:|",
            self.half_load
        );
        for row in &self.rows {
            let is_direct = row.kind == Kind::Direct;
            println!(
                "| {} | {:.0} | {:.0} | {} | {} |",
                row.kind.name(),
                median(row.half.iter().map(|sample| sample.p50_us)),
                median(row.half.iter().map(|sample| sample.p99_us)),
                shown(is_direct, self.added(row.kind), 0, ""),
                shown(is_direct, median(row.half.iter().map(|sample| sample.processor_us)), 2, ""),
            );
        }
    }

    fn print_memory(&self) {
        println!(
            "\n#### Memory: {} connections that rest, each after one request\n\n\
| | MiB before | MiB with them | KiB a connection | MiB for 10,000 |\n|---|---:|---:|---:|---:|",
            self.idle
        );
        for (kind, before, after) in &self.memory {
            let each = (*after as f64 - *before as f64) / self.idle.max(1) as f64;
            println!(
                "| {} | {:.1} | {:.1} | {each:.2} | {:.1} |",
                kind.name(),
                *before as f64 / 1_024.0,
                *after as f64 / 1_024.0,
                (*before as f64 + each * 10_000.0) / 1_024.0
            );
        }
    }

    fn print_targets(&self) {
        println!("\n#### Targets\n\n| target | measured | |\n|---|---:|---|");
        let speed = |kind| self.beside(kind, |sample| sample.per_second);
        let envoy = speed(Kind::Envoy);
        target("throughput ≥ Envoy's", times(envoy), envoy.partial_cmp(&1.0));
        let nginx = speed(Kind::Nginx);
        target("throughput ≥ 0.8 × nginx's", times(nginx), nginx.partial_cmp(&0.8));
        let (ours, theirs) =
            (self.added(Kind::Tollgate), self.added(Kind::Nginx).min(self.added(Kind::Envoy)));
        let compared = format!("{ours:.0} to {theirs:.0} µs");
        target("p99 added at half load ≤ the better of both", compared, theirs.partial_cmp(&ours));
        let shares = self.limit_shares();
        let share = median(shares.iter().copied());
        let measured = format!(
            "{:.1} % ({:.1}–{:.1})",
            share * 100.0,
            shares.iter().copied().fold(f64::INFINITY, f64::min) * 100.0,
            shares.iter().copied().fold(f64::NEG_INFINITY, f64::max) * 100.0
        );
        target("the limit layer ≤ 3 % of the gateway's processor time", measured, 0.03.partial_cmp(&share));
    }

    /// Tollgate's figure divided by that of another.
    fn beside(&self, kind: Kind, value: impl Fn(&Sample) -> f64) -> f64 {
        let (Some(ours), Some(other)) = (self.row(Kind::Tollgate), self.row(kind)) else { return f64::NAN };
        median(ours.closed.iter().zip(&other.closed).map(|(one, two)| value(one) / value(two)))
    }

    /// The time that a contender adds to the p99 of asking the upstream itself.
    fn added(&self, kind: Kind) -> f64 {
        let (Some(row), Some(direct)) = (self.row(kind), self.row(Kind::Direct)) else { return f64::NAN };
        median(row.half.iter().zip(&direct.half).map(|(one, two)| one.p99_us - two.p99_us))
    }

    /// The part of the processor time that limits take: of each round and both paces, as it is about as large as the noise.
    fn limit_shares(&self) -> Vec<f64> {
        let (Some(with), Some(without)) = (self.row(Kind::Tollgate), self.row(Kind::Unlimited)) else {
            return Vec::new();
        };
        let share = |(with, without): (&Sample, &Sample)| 1.0 - without.processor_us / with.processor_us;
        let closed = with.closed.iter().zip(&without.closed).map(share);
        let half = with.half.iter().zip(&without.half).map(share);
        closed.chain(half).collect()
    }
}

/// A row of the targets: reached if the figure is not on the wrong side, and left out if one of the compared was.
fn target(name: &str, measured: String, side: Option<Ordering>) {
    let reached = match side {
        None => return,
        Some(Ordering::Less) => "**MISSED**",
        Some(_) => "reached",
    };
    println!("| {name} | {measured} | {reached} |");
}

fn times(ratio: f64) -> String {
    if ratio.is_nan() { "–".to_owned() } else { format!("{ratio:.2}×") }
}

fn shown(is_missing: bool, value: f64, digits: usize, unit: &str) -> String {
    if is_missing { "–".to_owned() } else { format!("{value:.digits$}{unit}") }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() % 2 {
        _ if values.is_empty() => f64::NAN,
        0 => f64::midpoint(values[middle - 1], values[middle]),
        _ => values[middle],
    }
}
