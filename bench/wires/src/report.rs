//! The tables. Ratios are taken within each round and the median of them is shown.

use tollgate_load::Pace;

use crate::contender::{Contender, Wire};

/// One measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub(crate) per_second: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) allowed: f64,
}

#[derive(Debug)]
struct Cell {
    wire: Wire,
    name: &'static str,
    keys: u64,
    pace: Pace,
    samples: Vec<Sample>,
}

/// Everything measured in one run.
#[derive(Debug, Default)]
pub(crate) struct Report {
    cells: Vec<Cell>,
    idle: Vec<(&'static str, Option<u64>)>,
}

impl Report {
    pub(crate) fn idle(&mut self, name: &'static str, kib: Option<u64>) {
        self.idle.push((name, kib));
    }

    pub(crate) fn add(&mut self, contender: &Contender, keys: u64, pace: Pace, sample: Sample) {
        let known = self.cells.iter_mut().find(|cell| {
            (cell.wire, cell.name, cell.keys, cell.pace) == (contender.wire, contender.name, keys, pace)
        });
        match known {
            Some(cell) => cell.samples.push(sample),
            None => self.cells.push(Cell {
                wire: contender.wire,
                name: contender.name,
                keys,
                pace,
                samples: vec![sample],
            }),
        }
    }

    pub(crate) fn print(&self, rounds: usize) {
        println!("### Memory when idle\n\n| service | MiB resident |\n|---|---:|");
        for (name, kib) in &self.idle {
            let shown = kib.map_or_else(|| "–".to_owned(), |kib| format!("{:.1}", kib as f64 / 1_024.0));
            println!("| {name} | {shown} |");
        }
        for wire in Wire::ALL {
            let closed: Vec<&Cell> =
                self.cells.iter().filter(|cell| cell.wire == wire && cell.pace == Pace::Closed).collect();
            if closed.is_empty() {
                continue;
            }
            println!(
                "\n### {}: closed loop, 64 connections, medians of {rounds} rounds\n\n| | keys | decisions a second (least–most) | beside tollgate | p99 µs | allowed |\n|---|---:|---:|---:|---:|---:|",
                wire.name()
            );
            for cell in &closed {
                self.row(cell);
            }
        }
        println!(
            "\n### Open loop, 10,000 requests a second, 1M keys\n\n| protocol | | p50 µs | p99 µs | p99 beside tollgate's |\n|---|---|---:|---:|---:|"
        );
        for cell in self.cells.iter().filter(|cell| cell.pace != Pace::Closed) {
            let ours = self.ours(cell).map(|ours| ratio(cell, ours, |sample| sample.p99_us));
            println!(
                "| {} | {} | {:.0} | {:.0} | {} |",
                cell.wire.name(),
                cell.name,
                median(cell.samples.iter().map(|sample| sample.p50_us)),
                median(cell.samples.iter().map(|sample| sample.p99_us)),
                shown(ours)
            );
        }
    }

    fn row(&self, cell: &Cell) {
        let speeds = || cell.samples.iter().map(|sample| sample.per_second);
        let ours = self.ours(cell).map(|ours| ratio(cell, ours, |sample| sample.per_second));
        println!(
            "| {} | {} | {:.0} ({:.0}–{:.0}) | {} | {:.0} | {:.0} % |",
            cell.name,
            cell.keys,
            median(speeds()),
            speeds().fold(f64::INFINITY, f64::min),
            speeds().fold(0.0, f64::max),
            shown(ours),
            median(cell.samples.iter().map(|sample| sample.p99_us)),
            median(cell.samples.iter().map(|sample| sample.allowed)) * 100.0
        );
    }

    /// Tollgate's own measurement of the same kind: the first that it has on the wire.
    fn ours(&self, cell: &Cell) -> Option<&Cell> {
        self.cells.iter().find(|one| {
            one.name.starts_with("tollgate")
                && (one.wire, one.keys, one.pace) == (cell.wire, cell.keys, cell.pace)
        })
    }
}

fn ratio(cell: &Cell, other: &Cell, value: impl Fn(&Sample) -> f64) -> f64 {
    median(cell.samples.iter().zip(&other.samples).map(|(one, two)| value(one) / value(two)))
}

fn shown(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| "–".to_owned(), |ratio| format!("{ratio:.2}×"))
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
