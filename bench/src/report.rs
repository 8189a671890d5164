//! Results and their tables. Ratios are taken within each round, between neighbours in time, and the median of them is
//! shown: that is steadier on a noisy machine than a ratio of medians.

use std::fmt::Write as _;

use crate::contender::Kind;
use crate::measure::Sample;
use crate::workload::Workload;

/// One field of the tables: its samples, one for each round.
#[derive(Debug)]
pub struct Cell {
    /// The pattern of requests.
    pub workload: Workload,
    /// How many threads asked.
    pub threads: usize,
    /// The contender that answered.
    pub kind: Kind,
    /// Round by round.
    pub samples: Vec<Sample>,
}

/// Everything measured in one run.
#[derive(Debug, Default)]
pub struct Results {
    cells: Vec<Cell>,
}

impl Results {
    /// Adds what a round gave.
    pub fn add(&mut self, workload: Workload, threads: usize, kind: Kind, sample: Sample) {
        let known = self
            .cells
            .iter_mut()
            .find(|cell| (cell.workload, cell.threads, cell.kind) == (workload, threads, kind));
        match known {
            Some(cell) => cell.samples.push(sample),
            None => self.cells.push(Cell { workload, threads, kind, samples: vec![sample] }),
        }
    }

    /// The samples of a field, none if it was not measured.
    #[must_use]
    pub fn samples(&self, workload: Workload, threads: usize, kind: Kind) -> &[Sample] {
        let known = self
            .cells
            .iter()
            .find(|cell| (cell.workload, cell.threads, cell.kind) == (workload, threads, kind));
        known.map_or(&[], |cell| &cell.samples)
    }

    /// How many times faster `kind` is than `other`: the median over the rounds.
    #[must_use]
    pub fn ratio(&self, workload: Workload, threads: usize, kind: Kind, other: Kind) -> Option<f64> {
        let ours = self.samples(workload, threads, kind);
        let theirs = self.samples(workload, threads, other);
        median(ours.iter().zip(theirs).map(|(one, two)| one.per_second / two.per_second))
    }

    /// Millions of decisions a second.
    #[must_use]
    pub fn speeds(&self) -> String {
        self.table(|workload, threads, kind| {
            let speeds =
                || self.samples(workload, threads, kind).iter().map(|sample| sample.per_second / 1e6);
            let (least, most) = (speeds().fold(f64::MAX, f64::min), speeds().fold(0.0, f64::max));
            median(speeds()).map(|middle| format!("{} ({}–{})", short(middle), short(least), short(most)))
        })
    }

    /// How many times faster than `other`.
    #[must_use]
    pub fn ratios(&self, other: Kind) -> String {
        self.table(|workload, threads, kind| {
            self.ratio(workload, threads, kind, other).map(|ratio| format!("{}×", short(ratio)))
        })
    }

    /// The share of requests that were admitted: what the contenders were really doing.
    #[must_use]
    pub fn admissions(&self) -> String {
        self.table(|workload, threads, kind| {
            let shares = self.samples(workload, threads, kind).iter().map(|sample| sample.admitted);
            median(shares).map(|share| format!("{:.1} %", 100.0 * share))
        })
    }

    /// Every sample, for other programs.
    #[must_use]
    pub fn csv(&self) -> String {
        let mut text = String::from("workload,threads,contender,round,decisions_per_second,admitted_share\n");
        for cell in &self.cells {
            for (round, sample) in cell.samples.iter().enumerate() {
                let (workload, kind) = (cell.workload.name(), cell.kind.name());
                let Sample { per_second, admitted } = sample;
                let line =
                    format!("{workload},{},{kind},{round},{per_second:.0},{admitted:.4}", cell.threads);
                text.push_str(&line);
                text.push('\n');
            }
        }
        text
    }

    /// A row for each contender, a column for each pattern and number of threads; a dash where nothing was measured.
    fn table(&self, field: impl Fn(Workload, usize, Kind) -> Option<String>) -> String {
        let mut columns: Vec<(Workload, usize)> = Vec::new();
        let mut rows: Vec<Kind> = Vec::new();
        for cell in &self.cells {
            if !columns.contains(&(cell.workload, cell.threads)) {
                columns.push((cell.workload, cell.threads));
            }
            if !rows.contains(&cell.kind) {
                rows.push(cell.kind);
            }
        }
        columns.sort_by_key(|(workload, threads)| {
            (Workload::ALL.iter().position(|known| known == workload), *threads)
        });
        rows.sort_by_key(|kind| Kind::BUILT.iter().position(|known| known == kind));

        let headings: Vec<String> = columns
            .iter()
            .map(|(workload, threads)| format!("{}, {}", workload.title(), plural(*threads)))
            .collect();
        let mut text = format!("| | {} |\n|---|{}\n", headings.join(" | "), "---:|".repeat(columns.len()));
        for kind in rows {
            let fields: Vec<String> = columns
                .iter()
                .map(|&(workload, threads)| field(workload, threads, kind).unwrap_or_else(|| "–".to_owned()))
                .collect();
            let _ = writeln!(text, "| {} | {} |", kind.name(), fields.join(" | "));
        }
        text
    }
}

/// The middle of some numbers, the mean of the two middle ones for an even count, nothing for none.
#[must_use]
pub fn median(numbers: impl Iterator<Item = f64>) -> Option<f64> {
    let mut sorted: Vec<f64> = numbers.collect();
    sorted.sort_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    let lower = sorted[(sorted.len() - 1) / 2];
    Some((lower + upper) / 2.0)
}

/// Three digits that matter, no more.
#[must_use]
pub fn short(number: f64) -> String {
    match number {
        large if large >= 99.95 => format!("{large:.0}"),
        middle if middle >= 9.995 => format!("{middle:.1}"),
        small => format!("{small:.2}"),
    }
}

/// `1 thread`, `2 threads`.
#[must_use]
pub fn plural(threads: usize) -> String {
    format!("{threads} {}", if threads == 1 { "thread" } else { "threads" })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ratios pair the rounds: a machine that halves its speed between rounds does not change them.
    #[test]
    fn ratios_pair_the_rounds() {
        let mut results = Results::default();
        for speed in [8.0, 4.0, 2.0] {
            let sample = |per_second| Sample { per_second, admitted: 1.0 };
            results.add(Workload::Hot, 1, Kind::LowerBound, sample(3.0 * speed));
            results.add(Workload::Hot, 1, Kind::GovernorString, sample(speed));
        }
        assert_eq!(results.ratio(Workload::Hot, 1, Kind::LowerBound, Kind::GovernorString), Some(3.0));
        assert_eq!(results.ratio(Workload::Hot, 2, Kind::LowerBound, Kind::GovernorString), None);
    }

    /// The median of an even count lies between the two middle numbers; of nothing there is none.
    #[test]
    fn medians() {
        assert_eq!(median([4.0, 1.0, 3.0, 2.0].into_iter()), Some(2.5));
        assert_eq!(median([5.0, 1.0, 3.0].into_iter()), Some(3.0));
        assert_eq!(median(std::iter::empty()), None);
    }
}
