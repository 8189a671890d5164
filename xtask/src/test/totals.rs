//! How many tests a run counted, read from the closing lines of `cargo nextest` and `cargo test`.

/// The sum of the test runs in one log.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    /// Tests that failed and then passed.
    pub(crate) retried: Vec<String>,
}

impl Totals {
    /// Adds up every closing line in a log.
    pub(crate) fn of(log: &str) -> Self {
        let mut totals = Self::default();
        let mut is_after_summary = false;
        for line in log.lines() {
            if let Some(counts) = line.strip_prefix("test result: ") {
                totals.add(counts.split_once(". ").map_or("", |(_, counts)| counts), ';');
            } else if let Some(counts) = nextest_counts(line) {
                is_after_summary = true;
                totals.add(&without_parentheses(counts), ',');
            } else if is_after_summary && let Some(name) = flaky(line) {
                totals.retried.push(name.to_owned());
            }
        }
        totals.retried.sort();
        totals.retried.dedup();
        totals
    }

    /// Adds counts such as `7 passed, 1 failed, 2 timed out, 0 skipped`.
    fn add(&mut self, counts: &str, separator: char) {
        for count in counts.split(separator) {
            let Some((number, what)) = count.trim().split_once(' ') else { continue };
            let Ok(number) = number.parse::<u64>() else { continue };
            match what {
                "passed" => self.passed += number,
                "failed" | "timed out" | "exec failed" => self.failed += number,
                _ => {}
            }
        }
    }

    /// One line about the run.
    pub(crate) fn note(&self) -> String {
        let mut note = format!("{} passed", thousands(self.passed));
        if self.failed > 0 {
            note += &format!(", {} failed", thousands(self.failed));
        }
        if !self.retried.is_empty() {
            note += &format!(", {} after a retry: {}", self.retried.len(), self.retried.join(", "));
        }
        note
    }
}

/// The counts of nextest's closing line: `     Summary [  4.2s] 9 tests run: 8 passed (1 flaky), 1 failed, 0 skipped`.
fn nextest_counts(line: &str) -> Option<&str> {
    let (_, rest) = line.trim_start().strip_prefix("Summary [")?.split_once("] ")?;
    rest.split_once(" run: ").map(|(_, counts)| counts)
}

fn without_parentheses(text: &str) -> String {
    let mut depth = 0;
    let outside = text.chars().filter(|letter| {
        depth += i32::from(*letter == '(');
        let is_outside = depth == 0;
        depth -= i32::from(*letter == ')');
        is_outside
    });
    outside.collect::<String>().replace(" ,", ",").trim_end().to_owned()
}

/// The name in nextest's line of a flaky test: `   FLAKY 2/3 [   0.006s] (5/7) tollgate-redis::it kept::a`.
fn flaky(line: &str) -> Option<&str> {
    let (_, rest) = line.trim_start().strip_prefix("FLAKY ")?.split_once("] ")?;
    let rest = rest.trim_start();
    let name = rest.strip_prefix('(').and_then(|rest| rest.split_once(") ")).map_or(rest, |(_, name)| name);
    Some(name.trim())
}

/// A number with a comma before each three digits.
pub(crate) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEXTEST: &str = "\
        PASS [   0.010s] (1/1957) tollgate time::tests::a
  TRY 1 FAIL [   1.987s] (─────────) tollgate-server::it redis_guide::the_guide_is_true
  stdout ───
    test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 45 filtered out; finished in 1.69s
   FLAKY 2/3 [   2.281s] (1599/1957) tollgate-server::it before::the_summary
────────────
     Summary [ 452.388s] 1957 tests run: 1953 passed (8 slow, 1 flaky), 1 failed, 3 timed out, 0 skipped
   FLAKY 2/3 [   2.281s] (1599/1957) tollgate-server::it redis_guide::the_guide_is_true
  TRY 3 FAIL [   1.764s] ( 789/1957) tollgate-redis::it leases::fleet
error: test run failed
";

    #[test]
    fn closing_lines_of_nextest_and_cargo_add_up() {
        let cargo =
            "test result: ok. 50 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 2.1s\n";
        let failed = "test result: FAILED. 7 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1s\n";
        let totals = Totals::of(&format!("{NEXTEST}{cargo}{failed}"));
        assert_eq!((totals.passed, totals.failed), (1953 + 50 + 7, 4 + 2));
        assert_eq!(totals.retried, ["tollgate-server::it redis_guide::the_guide_is_true"]);
        assert_eq!(
            totals.note(),
            "2,010 passed, 6 failed, 1 after a retry: tollgate-server::it redis_guide::the_guide_is_true"
        );
    }

    #[test]
    fn a_run_without_failures_only_counts() {
        let totals = Totals::of("     Summary [   0.1s] 1 test run: 1 passed, 7 skipped\n");
        assert_eq!(totals, Totals { passed: 1, ..Totals::default() });
        assert_eq!(totals.note(), "1 passed");
    }

    /// The output of a failing test is indented by nextest, and is no total.
    #[test]
    fn the_output_of_a_test_is_not_counted() {
        assert_eq!(Totals::of("    test result: ok. 5 passed; 0 failed; 0 ignored\n"), Totals::default());
    }

    #[test]
    fn numbers_are_grouped() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(thousands), ["0", "999", "1,000", "1,234,567"]);
    }
}
