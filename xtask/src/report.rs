//! Prints what the rules counted: a table, the findings of one rule, or JSON.

use std::fmt::Write;

use crate::ceilings::Ceiling;
use crate::rules::{Report, Rule};

/// A rule, what it counted, and what it may count.
pub(crate) struct Outcome {
    pub rule: &'static Rule,
    pub ceiling: Option<Ceiling>,
    pub report: Report,
}

impl Outcome {
    pub(crate) fn is_over(&self) -> bool {
        self.ceiling.is_some_and(|ceiling| self.report.count > ceiling.ceiling)
    }

    fn is_under(&self) -> bool {
        self.ceiling.is_some_and(|ceiling| self.report.count < ceiling.ceiling)
    }

    fn state(&self) -> &'static str {
        match self.ceiling {
            None => "-",
            Some(_) if self.is_over() => "over",
            Some(_) => "ok",
        }
    }
}

/// One line for each rule, then what to do.
pub(crate) fn table(outcomes: &[Outcome]) -> String {
    let mut text = format!("{:<16} {:>7} {:>7} {:>5}\n", "rule", "count", "ceiling", "goal");
    for outcome in outcomes {
        let number =
            |of: fn(Ceiling) -> usize| outcome.ceiling.map_or("-".to_owned(), |it| of(it).to_string());
        let (ceiling, goal) = (number(|it| it.ceiling), number(|it| it.goal));
        let (count, state, about) = (outcome.report.count, outcome.state(), outcome.rule.about);
        let _ =
            writeln!(text, "{:<16} {count:>7} {ceiling:>7} {goal:>5}  {state:<5} {about}", outcome.rule.name);
    }
    for outcome in outcomes.iter().filter(|outcome| outcome.is_under()) {
        let (name, count) = (outcome.rule.name, outcome.report.count);
        let _ = writeln!(
            text,
            "note: {name}: lower the ceiling to {count}, or run `cargo xtask house --tighten`"
        );
    }
    for outcome in outcomes.iter().filter(|outcome| outcome.is_over()) {
        let name = outcome.rule.name;
        let _ = writeln!(
            text,
            "error: {name} is over its ceiling; `cargo xtask house {name}` lists the findings"
        );
    }
    text
}

/// Every finding of a rule, and the count.
pub(crate) fn listing(outcome: &Outcome) -> String {
    let mut text = String::new();
    for finding in &outcome.report.findings {
        let _ = match finding.line {
            0 => writeln!(text, "{}: {}", finding.file, finding.text),
            line => writeln!(text, "{}:{line}: {}", finding.file, finding.text),
        };
    }
    for line in &outcome.report.details {
        let _ = writeln!(text, "{line}");
    }
    let limit = outcome.ceiling.map_or(String::new(), |Ceiling { ceiling, goal }| {
        format!(", ceiling {ceiling}, goal {goal}: {}", outcome.state())
    });
    let _ = writeln!(text, "{}: {}{limit}", outcome.rule.name, outcome.report.count);
    text
}

/// Every rule with its findings.
pub(crate) fn json(outcomes: &[Outcome]) -> String {
    let rules = outcomes.iter().map(|outcome| {
        let number =
            |of: fn(Ceiling) -> usize| outcome.ceiling.map_or("null".to_owned(), |it| of(it).to_string());
        let findings = outcome.report.findings.iter().map(|finding| {
            let (file, text) = (quoted(&finding.file), quoted(&finding.text));
            format!(r#"{{"file":{file},"line":{},"text":{text}}}"#, finding.line)
        });
        format!(
            r#"{{"rule":{},"count":{},"ceiling":{},"goal":{},"over":{},"findings":[{}],"details":[{}]}}"#,
            quoted(outcome.rule.name),
            outcome.report.count,
            number(|it| it.ceiling),
            number(|it| it.goal),
            outcome.is_over(),
            findings.collect::<Vec<_>>().join(","),
            outcome.report.details.iter().map(|line| quoted(line)).collect::<Vec<_>>().join(","),
        )
    });
    format!("[{}]\n", rules.collect::<Vec<_>>().join(",\n"))
}

fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            control if control < ' ' => {
                let _ = write!(quoted, "\\u{:04x}", u32::from(control));
            }
            other => quoted.push(other),
        }
    }
    quoted + "\""
}

/// The name that shares the most letters at its beginning, if it shares some.
pub(crate) fn closest<'a>(typed: &str, names: &[&'a str]) -> Option<&'a str> {
    let shared =
        |name: &str| typed.chars().zip(name.chars()).take_while(|(left, right)| left == right).count();
    names.iter().copied().max_by_key(|name| shared(name)).filter(|name| shared(name) > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::{Finding, RULES};

    fn outcome(count: usize, ceiling: usize) -> Outcome {
        let findings = vec![Finding { file: "a.rs".to_owned(), line: 3, text: "\"x\"\t".to_owned() }];
        let report = Report { count, findings, details: Vec::new() };
        Outcome { rule: &RULES[0], ceiling: Some(Ceiling { ceiling, goal: 0 }), report }
    }

    /// Above its ceiling a rule fails; below, it only says so.
    #[test]
    fn only_a_count_above_the_ceiling_fails() {
        assert!(outcome(4, 3).is_over());
        assert!(!outcome(3, 3).is_over());
        assert!(!outcome(2, 3).is_over());
        assert!(table(&[outcome(4, 3)]).contains("error: cycles is over its ceiling"));
        assert!(table(&[outcome(2, 3)]).contains("note: cycles: lower the ceiling to 2"));
        assert_eq!(table(&[outcome(3, 3)]).lines().count(), 2);
    }

    #[test]
    fn findings_are_printed_with_their_place() {
        assert!(listing(&outcome(1, 1)).starts_with("a.rs:3: "));
        assert!(json(&[outcome(1, 1)]).contains(r#"{"file":"a.rs","line":3,"text":"\"x\"\u0009"}"#));
    }

    #[test]
    fn the_closest_name_is_close() {
        assert_eq!(closest("wrods", &["told", "words"]), Some("words"));
        assert_eq!(closest("something", &["told", "words"]), None);
    }
}
