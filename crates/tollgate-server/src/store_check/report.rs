//! The findings of a check, as a table for people and as JSON for programs.

use serde::Serialize;

use crate::text::plain;

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mark {
    /// As it should be.
    Ok,
    /// Worth knowing.
    Note,
    /// It works, but will cause trouble some day.
    Warn,
    /// Tollgate cannot count here, or not correctly.
    Fail,
}

impl Mark {
    const fn text(self) -> &'static str {
        match self {
            Mark::Ok => "ok",
            Mark::Note => "note",
            Mark::Warn => "warn",
            Mark::Fail => "FAIL",
        }
    }
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct CheckFinding {
    pub(crate) mark: Mark,
    pub(crate) check: &'static str,
    /// The servers it is about, if there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) nodes: Vec<String>,
    pub(crate) found: String,
    /// The cure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cure: Option<String>,
}

impl CheckFinding {
    pub(crate) fn new(mark: Mark, check: &'static str, found: impl Into<String>) -> Self {
        Self { mark, check, nodes: Vec::new(), found: found.into(), cure: None }
    }

    pub(crate) fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self::new(Mark::Ok, check, found)
    }

    pub(crate) fn cured_by(self, cure: impl Into<String>) -> Self {
        Self { cure: Some(cure.into()), ..self }
    }
}

/// All findings about a store.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// Its address, without the password.
    pub(crate) store: String,
    /// Whether Tollgate can count there.
    pub(crate) fit: bool,
    pub(crate) failures: usize,
    pub(crate) warnings: usize,
    pub(crate) checks: Vec<CheckFinding>,
}

impl Report {
    /// Combines findings: an equal finding about several servers becomes one line.
    pub(crate) fn new(store: String, found: Vec<CheckFinding>) -> Self {
        let mut checks: Vec<CheckFinding> = Vec::new();
        for line in found {
            let is_same = |known: &&mut CheckFinding| {
                let same =
                    |line: &CheckFinding| (line.mark, line.check, line.found.clone(), line.cure.clone());
                !line.nodes.is_empty() && !known.nodes.is_empty() && same(known) == same(&line)
            };
            match checks.iter_mut().find(is_same) {
                Some(known) => known.nodes.extend(line.nodes),
                None => checks.push(line),
            }
        }
        // Lines about the same check stay together, in the order in which the checks first appeared.
        let order: Vec<&'static str> = checks.iter().map(|line| line.check).collect();
        checks.sort_by_key(|line| order.iter().position(|check| *check == line.check));
        let count = |mark| checks.iter().filter(|line| line.mark == mark).count();
        let (failures, warnings) = (count(Mark::Fail), count(Mark::Warn));
        Self { store, fit: failures == 0, failures, warnings, checks }
    }

    /// Formats the table.
    pub(crate) fn lines(&self) -> Vec<String> {
        let mut lines = vec![self.store.clone(), String::new()];
        for line in &self.checks {
            let nodes = match line.nodes.as_slice() {
                [] => String::new(),
                [node] => format!("{node}: "),
                nodes => format!("{} servers: ", nodes.len()),
            };
            // Text from a server goes to a terminal, so nothing in it may act there.
            lines.push(format!(
                "  {:<4}  {:<11}  {nodes}{}",
                line.mark.text(),
                line.check,
                plain(&line.found)
            ));
            // What is only worth knowing need not be cured.
            let word = if line.mark == Mark::Note { "option" } else { "cure" };
            lines.extend(line.cure.iter().map(|cure| format!("{:21}{word}: {}", "", plain(cure))));
        }
        lines.push(String::new());
        lines.push(self.summary());
        lines
    }

    fn summary(&self) -> String {
        let counted = |number: usize, what: &str| match number {
            1 => format!("1 {what}"),
            _ => format!("{number} {what}s"),
        };
        match (self.failures, self.warnings) {
            (0, 0) => "fit: nothing to cure".to_owned(),
            (0, warnings) => format!("fit, with {}", counted(warnings, "warning")),
            (failures, warnings) => {
                format!("UNFIT: {}, {}", counted(failures, "failure"), counted(warnings, "warning"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An equal finding about three servers is reported once. Different findings are reported by server.
    #[test]
    fn the_same_at_several_servers_is_one_line() {
        let at = |node: &str, line: CheckFinding| CheckFinding { nodes: vec![node.to_owned()], ..line };
        let found = vec![
            at("a:1", CheckFinding::ok("version", "Redis 7")),
            at("a:1", CheckFinding::new(Mark::Note, "rights", "all").cured_by("a user of its own")),
            at("a:1", CheckFinding::new(Mark::Warn, "memory", "full").cured_by("more")),
            at("b:1", CheckFinding::ok("version", "Redis 7")),
            at("b:1", CheckFinding::new(Mark::Fail, "memory", "gone\u{1b}[2J")),
        ];
        let report = Report::new("redis-cluster://a:1".to_owned(), found);
        let expected = "redis-cluster://a:1

  ok    version      2 servers: Redis 7
  note  rights       a:1: all
                     option: a user of its own
  warn  memory       a:1: full
                     cure: more
  FAIL  memory       b:1: gone\\u{1b}[2J

UNFIT: 1 failure, 1 warning";
        assert_eq!(report.lines().join("\n"), expected);
        assert!(!report.fit);
    }
}
