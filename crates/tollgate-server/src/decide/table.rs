//! Decisions as a table: one row for each, one column for each limit.

use std::fmt::Write;

use tollgate::{Decision, Enforcement, LimitStatus, Source, Ticks, Verdict};

use crate::console::{Console, Style};
use crate::text::grouped;

/// Width of the columns before those of the limits.
const NUMBER_WIDTH: usize = 7;
const TIME_WIDTH: usize = 10;
const VERDICT_WIDTH: usize = 24;

/// A table that is written row by row. Its columns are those of the first decision: the same request meets the same limits.
#[derive(Debug, Default)]
pub(super) struct DecisionTable {
    rows: u64,
    widths: Vec<usize>,
    /// The columns of limits that begin a line, since those before fill the terminal.
    breaks: Vec<usize>,
    refused: bool,
    faulty: bool,
    shadows: bool,
}

impl DecisionTable {
    /// Writes one decision, `after` the first.
    pub(super) fn row(&mut self, decision: &Decision, after: Ticks, console: &mut Console) {
        if self.rows == 0 {
            self.head(decision, console);
        }
        self.rows += 1;
        let style = if decision.is_allowed() { Style::Good } else { Style::Bad };
        let mut line = format!(
            "{:>NUMBER_WIDTH$}  {:>TIME_WIDTH$}  {}",
            self.rows,
            format!("+{}", elapsed(after)),
            console.painted(&format!("{:<VERDICT_WIDTH$}", verdict(decision.verdict())), style)
        );
        for (column, (status, &width)) in decision.limits().zip(&self.widths).enumerate() {
            let refused = !status.outcome.is_allowed();
            self.refused |= refused;
            self.next_column(column, &mut line, console);
            let _ = write!(line, "  {:<width$}", cell(&status));
        }
        console.row(line.trim_end());
        if let Some(fault) = decision.fault()
            && !std::mem::replace(&mut self.faulty, true)
        {
            console.line(format_args!("{:>NUMBER_WIDTH$}  {fault}", ""));
        }
    }

    fn head(&mut self, decision: &Decision, console: &mut Console) {
        let mut titles = Vec::new();
        for status in decision.limits() {
            let name = status.limit.name();
            let shadow = status.enforcement == Enforcement::Shadow;
            self.shadows |= shadow;
            let title = if shadow { format!("({name})") } else { name.to_owned() };
            let widest = format!("{limit}/{limit} *", limit = grouped(status.outcome.limit)).len();
            self.widths.push(widest.max(cell(&status).len()).max(title.chars().count()));
            titles.push(title);
        }
        let mut line =
            format!("{:>NUMBER_WIDTH$}  {:>TIME_WIDTH$}  {:<VERDICT_WIDTH$}", "request", "time", "verdict");
        if let Some(room) = console.width() {
            self.breaks = breaks(line.len(), &self.widths, room);
        }
        for (column, title) in titles.iter().enumerate() {
            self.next_column(column, &mut line, console);
            let width = self.widths[column];
            let _ = write!(line, "  {title:<width$}");
        }
        console.row(line.trim_end());
    }

    /// Begins another line where a column has no room in this one.
    fn next_column(&self, column: usize, line: &mut String, console: &mut Console) {
        if self.breaks.contains(&column) {
            console.row(line.trim_end());
            *line = " ".repeat(NUMBER_WIDTH);
        }
    }

    /// Explains the marks that were used.
    pub(super) fn end(&self, console: &mut Console) {
        if self.widths.is_empty() && !self.faulty {
            console.line("\nNo limit applies to these attributes; `tollgate policy check` shows what each limit asks for.");
            return;
        }
        console.line("\nEach limit shows what remains of how much.");
        if self.refused {
            console.line("* refused by this limit");
        }
        if self.shadows {
            console.line("(name) only counts: this limit is in shadow and never refuses");
        }
    }
}

/// The columns that begin a line, if the first line has so many characters before them.
fn breaks(before: usize, widths: &[usize], room: usize) -> Vec<usize> {
    let (mut used, mut found) = (before, Vec::new());
    for (column, width) in widths.iter().enumerate() {
        if used + 2 + width > room {
            found.push(column);
            used = NUMBER_WIDTH;
        }
        used += 2 + width;
    }
    found
}

fn cell(status: &LimitStatus<'_>) -> String {
    let mark = if status.outcome.is_allowed() { "" } else { " *" };
    if status.quota.is_none() {
        return if mark.is_empty() { "unlimited".to_owned() } else { format!("deny{mark}") };
    }
    if status.source == Source::Penalty {
        return format!("blocked{mark}");
    }
    format!("{}/{}{mark}", grouped(status.outcome.remaining), grouped(status.outcome.limit))
}

fn verdict(verdict: Verdict) -> String {
    match verdict {
        Verdict::Allow => "allow".to_owned(),
        Verdict::Wait(wait) => format!("wait {}", wait.readable()),
        Verdict::Deny { retry_after } => format!("deny, retry in {}", retry_after.readable()),
        Verdict::Never => "deny, can never pass".to_owned(),
        Verdict::Forbidden => "deny".to_owned(),
    }
}

/// Units of longer times, in milliseconds.
const UNITS: [(u64, &str); 3] = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "min")];

/// The virtual time since the first request for people, to the millisecond: `0 s`, `0.25 s`, `1 h 30 min`.
fn elapsed(time: Ticks) -> String {
    let mut millis = time.ceil_millis();
    let mut parts = Vec::new();
    for (unit, name) in UNITS {
        if millis >= unit {
            parts.push(format!("{} {name}", millis / unit));
            millis %= unit;
        }
    }
    if millis > 0 || parts.is_empty() {
        let seconds = format!("{}.{:03}", millis / 1_000, millis % 1_000);
        parts.push(format!("{} s", seconds.trim_end_matches('0').trim_end_matches('.')));
    }
    parts.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a narrow terminal cut the columns of limits off.
    #[test]
    fn limits_without_room_are_in_the_next_line() {
        assert!(breaks(45, &[10, 12, 12], 200).is_empty());
        assert_eq!(breaks(45, &[10, 12, 12], 80), [2]);
        assert_eq!(breaks(45, &[10, 12, 12], 40), [0, 2]);
    }

    /// A person reads how far the virtual clock went, and nothing is rounded away.
    #[test]
    fn elapsed_time_is_for_people() {
        for (millis, expected) in [
            (0, "0 s"),
            (200, "0.2 s"),
            (1_234, "1.234 s"),
            (60_000, "1 min"),
            (5_400_000, "1 h 30 min"),
            (1_276_469_864, "14 d 18 h 34 min 29.864 s"),
        ] {
            assert_eq!(elapsed(Ticks::from_millis(millis)), expected);
        }
    }
}
