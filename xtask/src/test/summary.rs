//! Prints the steps: a line for each, the complaints of a failed one, and the closing table.

use std::path::Path;

/// The most lines of complaints that are shown of one log.
const COMPLAINTS_MAX: usize = 40;
/// How many of the last lines of a failed step are shown.
const LAST_LINES: usize = 20;

/// How one step ended.
#[derive(Debug)]
pub(crate) struct StepResult {
    pub(crate) name: &'static str,
    pub(crate) is_ok: bool,
    pub(crate) seconds: u64,
    /// The step's summary, or nothing.
    pub(crate) note: String,
}

impl StepResult {
    const fn word(&self) -> &'static str {
        if self.is_ok { "ok" } else { "FAILED" }
    }

    /// The line after the step.
    pub(crate) fn line(&self) -> String {
        let Self { name, seconds, note, .. } = self;
        let comma = if note.is_empty() { "" } else { ", " };
        format!("      {name}: {} in {seconds} s{comma}{note}\n", self.word())
    }
}

/// The table of all steps, and the closing line that CI reads.
pub(crate) fn table(results: &[StepResult], seconds: u64) -> String {
    let mut text = format!("\n{:<10} {:<7} {:>8}\n", "step", "result", "time");
    for result in results {
        let row =
            format!("{:<10} {:<7} {:>6} s  {}", result.name, result.word(), result.seconds, result.note);
        text += row.trim_end();
        text.push('\n');
    }
    let passed = results.iter().filter(|result| result.is_ok).count();
    text + &format!("in all {seconds} s\n\n{passed} passed, {} failed\n", results.len() - passed)
}

/// The complaints of a failed step, and how it ended.
pub(crate) fn complaints(log: &str, path: &Path) -> String {
    let lines: Vec<&str> = log.lines().collect();
    let complaints = lines.iter().enumerate().filter(|(_, line)| is_complaint(line)).take(COMPLAINTS_MAX);
    let mut text: String =
        complaints.map(|(index, line)| format!("      | {}:{line}\n", index + 1)).collect();
    text += "      | …\n";
    for line in &lines[lines.len().saturating_sub(LAST_LINES)..] {
        text += &format!("      | {line}\n");
    }
    text + &format!("      all of it: {}\n", path.display())
}

fn is_complaint(line: &str) -> bool {
    line.starts_with("error")
        || line.contains("panicked at")
        || (line.starts_with("test ") && line.ends_with(" FAILED"))
        || ["FAIL [", "TIMEOUT [", "SIGABRT [", "SIGSEGV [", "SIGKILL ["]
            .iter()
            .any(|word| line.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results() -> [StepResult; 2] {
        let ok = StepResult { name: "fmt", is_ok: true, seconds: 1, note: String::new() };
        [
            ok,
            StepResult {
                name: "test",
                is_ok: false,
                seconds: 452,
                note: "1,956 passed, 1 failed".to_owned(),
            },
        ]
    }

    #[test]
    fn the_table_ends_with_the_line_that_ci_reads() {
        let expected = "
step       result      time
fmt        ok           1 s
test       FAILED     452 s  1,956 passed, 1 failed
in all 455 s

1 passed, 1 failed
";
        assert_eq!(table(&results(), 455), expected);
    }

    #[test]
    fn a_step_has_its_line() {
        let [ok, failed] = results();
        assert_eq!(ok.line(), "      fmt: ok in 1 s\n");
        assert_eq!(failed.line(), "      test: FAILED in 452 s, 1,956 passed, 1 failed\n");
    }

    /// Errors far above the end are shown with their line, then the end itself.
    #[test]
    fn complaints_are_found() {
        let log = format!("fine\nerror: wrong\n{}  TRY 3 FAIL [   1.7s] a::b\nlast\n", "more\n".repeat(30));
        let shown = complaints(&log, Path::new("t.log"));
        assert!(
            shown.starts_with("      | 2:error: wrong\n      | 33:  TRY 3 FAIL [   1.7s] a::b\n      | …\n"),
            "{shown}"
        );
        assert!(shown.ends_with("      | last\n      all of it: t.log\n"), "{shown}");
        assert_eq!(shown.lines().count(), 2 + 1 + 20 + 1);
    }
}
