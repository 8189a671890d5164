//! Test results as JUnit XML, which every CI reads. Names come from files, so every text is escaped.

use std::fmt::Write;

use tollgate::Ticks;
use tollgate::time::TICKS_PER_SECOND;

use super::report::{FileResult, headline};

/// The document: a suite for each file, with a test case for each case and the time it took. A file that cannot be
/// tested is an error.
pub(super) fn document(files: &[FileResult]) -> String {
    let mut text = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n");
    for file in files {
        suite(&mut text, file);
    }
    text.push_str("</testsuites>\n");
    text
}

// Writing to a string cannot fail.
fn suite(into: &mut String, file: &FileResult) {
    let name = escaped(&file.name);
    let cases = match &file.outcome {
        Ok(cases) => cases.as_slice(),
        Err(problem) => {
            let _ = writeln!(
                into,
                "  <testsuite name=\"{name}\" tests=\"1\" failures=\"0\" errors=\"1\" time=\"0\">"
            );
            let _ = writeln!(into, "    <testcase classname=\"{name}\" name=\"{name}\" time=\"0\">");
            let _ = writeln!(into, "      <error message=\"cannot be tested\">{}</error>", escaped(problem));
            into.push_str("    </testcase>\n  </testsuite>\n");
            return;
        }
    };
    let failures = cases.iter().filter(|case| !case.mismatches.is_empty()).count();
    let tests = cases.len();
    let took = seconds(cases.iter().fold(Ticks::ZERO, |sum, case| sum + case.took));
    let _ = writeln!(
        into,
        "  <testsuite name=\"{name}\" tests=\"{tests}\" failures=\"{failures}\" errors=\"0\" time=\"{took}\">"
    );
    for case in cases {
        let (of_case, took) = (escaped(&case.name), seconds(case.took));
        let _ = write!(into, "    <testcase classname=\"{name}\" name=\"{of_case}\" time=\"{took}\"");
        if case.mismatches.is_empty() {
            into.push_str("/>\n");
            continue;
        }
        into.push_str(">\n");
        let lines = case.mismatches.iter().flat_map(|mismatch| {
            let headline = format!("{}:{}: {}", file.name, mismatch.line, headline(mismatch));
            [headline, mismatch.explanation.clone()]
        });
        let lines: Vec<String> = lines.filter(|line| !line.is_empty()).collect();
        let message = case.mismatches.first().map(headline).unwrap_or_default();
        let _ = writeln!(
            into,
            "      <failure message=\"{}\">{}</failure>",
            escaped(&message),
            escaped(&lines.join("\n"))
        );
        into.push_str("    </testcase>\n");
    }
    into.push_str("  </testsuite>\n");
}

/// A time in seconds, as JUnit has it.
fn seconds(time: Ticks) -> String {
    let micros = time.as_micros();
    format!("{}.{:06}", micros / TICKS_PER_SECOND, micros % TICKS_PER_SECOND)
}

/// The text in XML. A character that XML cannot hold is replaced.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\n' => escaped.push_str("&#10;"),
            '\t' => escaped.push_str("&#9;"),
            '\r' => escaped.push_str("&#13;"),
            '\0'..='\u{1f}' | '\u{fffe}' | '\u{ffff}' => escaped.push('\u{fffd}'),
            _ => escaped.push(character),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::super::run::{CaseResult, Mismatch};
    use super::*;

    /// Hostile names cannot leave their attribute, and control characters do not break the document.
    #[test]
    fn names_are_escaped() {
        let mismatch = Mismatch {
            line: 7,
            request: 2,
            after_ms: 1_500,
            expected: "deny by <per-key>".to_owned(),
            got: "allow".to_owned(),
            explanation: "a & b".to_owned(),
        };
        let case = CaseResult {
            name: "\"/><x a='\u{1}\n".to_owned(),
            line: 3,
            requests: 2,
            took: Ticks::from_micros(1_000_250),
            mismatches: vec![mismatch],
        };
        let files = [
            FileResult { name: "t.yaml".to_owned(), policy: String::new(), outcome: Ok(vec![case]) },
            FileResult {
                name: "u.yaml".to_owned(),
                policy: String::new(),
                outcome: Err("<no such file>".to_owned()),
            },
        ];
        let expected = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n  \
            <testsuite name=\"t.yaml\" tests=\"1\" failures=\"1\" errors=\"0\" time=\"1.000250\">\n    \
            <testcase classname=\"t.yaml\" name=\"&quot;/&gt;&lt;x a='\u{fffd}&#10;\" time=\"1.000250\">\n      \
            <failure message=\"request 2 at 1.5 s: expected deny by &lt;per-key&gt;, got allow\">\
            t.yaml:7: request 2 at 1.5 s: expected deny by &lt;per-key&gt;, got allow&#10;a &amp; b</failure>\n    \
            </testcase>\n  </testsuite>\n  \
            <testsuite name=\"u.yaml\" tests=\"1\" failures=\"0\" errors=\"1\" time=\"0\">\n    \
            <testcase classname=\"u.yaml\" name=\"u.yaml\" time=\"0\">\n      \
            <error message=\"cannot be tested\">&lt;no such file&gt;</error>\n    \
            </testcase>\n  </testsuite>\n</testsuites>\n";
        assert_eq!(document(&files), expected);
    }
}
