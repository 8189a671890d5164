//! The findings of the compiler: every problem with its position, its field and what would be accepted.

use std::fmt;

use crate::credential::CredentialAttributes;
use crate::problem::QUOTED_MAX;
use crate::problem::explained;
pub use crate::problem::{Problem, quoted};

/// Most findings of a report. The rest are only counted, so that the report stays readable.
pub(crate) const FINDINGS_MAX: usize = 1000;

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Severity {
    /// The policy cannot be used.
    Error,
    /// The policy can be used, but probably does not mean what its author intended.
    Warning,
}

/// A line and a column, both from 1. Line 0 is no position, as in a policy built in Rust.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Position {
    /// The line.
    pub line: u32,
    /// The column, in characters.
    pub column: u32,
}

/// One problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Its severity.
    pub severity: Severity,
    /// The file, as the caller named it.
    pub file: String,
    /// The line, from 1; 0 when the policy was not read from text.
    pub line: u32,
    /// The column in characters, from 1.
    pub column: u32,
    /// The path of the field, such as `limits[2].rate`; empty when the file as a whole is at fault.
    pub field: String,
    /// The name of the limit, when it has one.
    pub limit: Option<String>,
    /// The problem.
    pub message: String,
    /// The accepted values; empty when the message says it.
    pub accepted: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file)?;
        if self.line > 0 {
            write!(f, ":{}:{}", self.line, self.column)?;
        }
        f.write_str(": ")?;
        if self.severity == Severity::Warning {
            f.write_str("warning: ")?;
        }
        let (element, rest) = match self.field.find(']') {
            Some(end) => self.field.split_at(end + 1),
            None => (self.field.as_str(), ""),
        };
        f.write_str(element)?;
        if let Some(limit) = &self.limit {
            write!(f, " \"{limit}\"")?;
        }
        f.write_str(rest)?;
        if !self.field.is_empty() {
            f.write_str(": ")?;
        }
        f.write_str(&explained(&self.message, &self.accepted))
    }
}

/// Every problem of a policy, in the order of the file. Displayed one to a line, as `tollgate policy check` prints them,
/// also for debugging: a `main` that returns them as its error shows that text.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Findings {
    found: Vec<Finding>,
    left_off: usize,
}

impl Findings {
    /// The findings that were kept: at most `FINDINGS_MAX`.
    #[must_use]
    pub fn as_slice(&self) -> &[Finding] {
        &self.found
    }

    /// The findings that were kept, one by one.
    pub fn iter(&self) -> std::slice::Iter<'_, Finding> {
        self.found.iter()
    }

    /// How many there are, with those that were not kept.
    #[must_use]
    pub fn len(&self) -> usize {
        self.found.len() + self.left_off
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }
}

impl<'a> IntoIterator for &'a Findings {
    type Item = &'a Finding;
    type IntoIter = std::slice::Iter<'a, Finding>;
    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, finding) in self.found.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{finding}")?;
        }
        if self.left_off > 0 {
            write!(f, "\n... and {} more", self.left_off)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Findings {}

/// Collects findings while a policy is compiled. It knows which part of the file is being read.
#[derive(Debug)]
pub struct Report {
    file: String,
    path: String,
    limit: Option<String>,
    findings: Findings,
    errors: usize,
    /// The attributes whose values must not be shown.
    credentials: CredentialAttributes,
    /// Findings before this one are about other files, and in their order.
    sorted: usize,
}

impl Report {
    /// An empty report about a file.
    #[must_use]
    pub fn new(file: &str) -> Self {
        Self {
            file: file.to_owned(),
            path: String::new(),
            limit: None,
            findings: Findings::default(),
            errors: 0,
            credentials: CredentialAttributes::default(),
            sorted: 0,
        }
    }

    /// Marks attributes that hold credentials.
    #[must_use]
    pub fn knowing(self, credentials: &CredentialAttributes) -> Self {
        Self { credentials: credentials.clone(), ..self }
    }

    /// The attributes that hold credentials: no finding shows a value of theirs.
    #[must_use]
    pub const fn credentials(&self) -> &CredentialAttributes {
        &self.credentials
    }

    /// Makes the following findings about the limit at `index`.
    pub(crate) fn enter_limit(&mut self, index: usize, name: Option<&str>) {
        self.path = format!("limits[{index}]");
        self.limit = name.map(quoted);
    }

    /// Makes the following findings about another file as a whole.
    pub fn enter_file(&mut self, file: &str) {
        self.leave_limit();
        self.findings.found[self.sorted..].sort_by_key(|finding| (finding.line, finding.column));
        self.sorted = self.findings.found.len();
        self.file = file.to_owned();
    }

    /// Makes the following findings about this part of the file, and the limit with this name, if any.
    pub fn enter(&mut self, path: String, name: Option<&str>) {
        self.path = path;
        self.limit = name.map(quoted);
    }

    /// Makes the following findings about the file as a whole.
    pub fn leave_limit(&mut self) {
        self.path.clear();
        self.limit = None;
    }

    /// Reports an error: the file cannot be used.
    pub fn error(&mut self, at: Position, field: &str, problem: Problem) {
        self.errors += 1;
        self.push(Severity::Error, at, field, problem);
    }

    /// Reports a problem with a severity.
    pub(crate) fn say(&mut self, at: Position, field: &str, (severity, problem): (Severity, Problem)) {
        match severity {
            Severity::Error => self.error(at, field, problem),
            Severity::Warning => self.warning(at, field, problem),
        }
    }

    /// Reports a warning: the file can be used, but probably does not mean what its author intended.
    pub fn warning(&mut self, at: Position, field: &str, problem: Problem) {
        self.push(Severity::Warning, at, field, problem);
    }

    /// How many errors were reported so far.
    #[must_use]
    pub fn errors(&self) -> usize {
        self.errors
    }

    /// Everything found, in the order of the file.
    #[must_use]
    pub fn into_findings(mut self) -> Findings {
        self.findings.found[self.sorted..].sort_by_key(|finding| (finding.line, finding.column));
        self.findings
    }

    fn push(&mut self, severity: Severity, at: Position, field: &str, problem: Problem) {
        if self.findings.found.len() >= FINDINGS_MAX {
            self.findings.left_off += 1;
            return;
        }
        let field = match (self.path.is_empty(), field.is_empty()) {
            (true, _) => field.to_owned(),
            (false, true) => self.path.clone(),
            (false, false) => format!("{}.{field}", self.path),
        };
        let same = |known: &Finding| {
            (known.line, known.column) == (at.line, at.column)
                && known.field == field
                && known.message == problem.message
        };
        // A problem with a number that all tiers inherit is reported once.
        if self.findings.found.iter().rev().take(8).any(same) {
            return;
        }
        self.findings.found.push(Finding {
            severity,
            file: self.file.clone(),
            line: at.line,
            column: at.column,
            field,
            limit: self.limit.clone(),
            message: problem.message,
            accepted: problem.accepted,
        });
    }
}

/// Words that other programs use, without hyphens and underscores, each with the word for it here.
const OTHER_NAMES: [(&str, &str); 36] = [
    ("clientip", "ip"),
    ("remoteip", "ip"),
    ("sourceip", "ip"),
    ("realip", "ip"),
    ("ipaddr", "ip"),
    ("ipaddress", "ip"),
    ("clientaddr", "ip"),
    ("clientaddress", "ip"),
    ("xforwardedfor", "ip"),
    ("ipv4", "ip"),
    ("ipv6", "ip"),
    ("httpmethod", "method"),
    ("requestmethod", "method"),
    ("hostname", "host"),
    ("httphost", "host"),
    ("pathname", "path"),
    ("requestpath", "path"),
    ("urlpath", "path"),
    ("dryrun", "shadow"),
    ("monitor", "shadow"),
    ("report", "shadow"),
    ("observe", "shadow"),
    ("logonly", "shadow"),
    ("on", "enforce"),
    ("enabled", "enforce"),
    ("active", "enforce"),
    ("disabled", "off"),
    ("none", "off"),
    ("open", "allow"),
    ("failopen", "allow"),
    ("closed", "deny"),
    ("failclosed", "deny"),
    ("rollingwindow", "sliding-window"),
    ("window", "fixed-window"),
    ("bucket", "token-bucket"),
    ("semaphore", "concurrency"),
];
/// Minimum length of the beginning of a word that stands for the whole.
const BEGINNING_MIN: usize = 3;

/// The candidate that was meant by `text`: another program's name for it, the nearest spelling if it is near enough, or
/// the first candidate that begins with it.
pub fn nearest<'c>(text: &str, candidates: impl IntoIterator<Item = &'c str>) -> Option<&'c str> {
    if text.len() > QUOTED_MAX {
        return None;
    }
    let candidates: Vec<&str> = candidates.into_iter().collect();
    let letters = text.replace(['-', '_'], "").to_ascii_lowercase();
    let other = OTHER_NAMES.iter().find(|(other, _)| *other == letters).map(|(_, meant)| *meant);
    let other = other.and_then(|meant| candidates.iter().copied().find(|candidate| *candidate == meant));
    let near = || {
        let distances = candidates.iter().map(|&candidate| (edits(text, candidate), candidate));
        let near = distances.filter(|&(distance, candidate)| is_near(text, candidate, distance));
        near.min_by_key(|&(distance, _)| distance).map(|(_, candidate)| candidate)
    };
    let begun =
        || candidates.iter().copied().find(|one| text.len() >= BEGINNING_MIN && one.starts_with(text));
    let cased = candidates.iter().copied().find(|candidate| candidate.eq_ignore_ascii_case(text));
    cased.or(other).or_else(near).or_else(begun)
}

/// Whether so many changed letters are a misspelling. Short words are near to many: `ipp` means `ip`, `id` and `zip` do not.
fn is_near(text: &str, candidate: &str, distance: usize) -> bool {
    let begins_alike = text.chars().next() == candidate.chars().next();
    match candidate.len() {
        0..=2 => distance <= 1 && begins_alike && text.len() != candidate.len(),
        3 => distance <= 1 && begins_alike,
        length => distance <= length / 3,
    }
}

/// How many letters must be added, dropped, changed or swapped with their neighbour to make one word the other.
fn edits(one: &str, other: &str) -> usize {
    let [one, other] =
        [one, other].map(|word| word.chars().flat_map(char::to_lowercase).collect::<Vec<char>>());
    // Two rows of the table of distances between the beginnings of both words, and the one that is made of them.
    let mut before: Vec<usize> = Vec::new();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, &a) in one.iter().enumerate() {
        let mut next = vec![i + 1];
        for (j, &b) in other.iter().enumerate() {
            let changed = row[j] + usize::from(a != b && !(a == '-' && b == '_'));
            let mut least = changed.min(next[j] + 1).min(row[j + 1] + 1);
            if i > 0 && j > 0 && a == other[j - 1] && one[i - 1] == b {
                least = least.min(before[j - 1] + 1);
            }
            next.push(least);
        }
        before = std::mem::replace(&mut row, next);
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A finding reads like the message of a compiler, with the name of the limit after its index.
    #[test]
    fn a_finding_is_displayed_with_place_field_and_name() {
        let mut report = Report::new("policy.yaml");
        report.enter_limit(2, Some("login"));
        let at = Position { line: 12, column: 11 };
        report.error(at, "rate", Problem::new("no period", "100/s"));
        report.warning(at, "", Problem::new("odd", ""));
        assert_eq!(
            report.into_findings().to_string(),
            "policy.yaml:12:11: limits[2] \"login\".rate: no period; accepted: 100/s\n\
             policy.yaml:12:11: warning: limits[2] \"login\": odd"
        );
    }

    /// A typing error is recognised, another word is not.
    #[test]
    fn the_nearest_candidate_is_suggested_only_when_near() {
        assert_eq!(nearest("rats", ["rate", "burst"]), Some("rate"));
        assert_eq!(nearest("cots", ["attributes", "cost"]), Some("cost"), "neighbours that changed places");
        assert_eq!(nearest("on-store-failure", ["on_store_failure"]), Some("on_store_failure"));
        assert_eq!(nearest("colour", ["rate", "burst"]), None);
    }

    /// Regression: `leaky`, `dry-run` and `ipaddr` got no hint.
    #[test]
    fn beginnings_and_names_of_other_programs_are_recognised() {
        let algorithms = ["token-bucket", "sliding-window", "sliding-log", "leaky-bucket"];
        for (text, expected) in [
            ("leaky", Some("leaky-bucket")),
            ("sliding", Some("sliding-window")),
            ("rolling_window", Some("sliding-window")),
            ("to", None),
            ("open", None),
        ] {
            assert_eq!(nearest(text, algorithms), expected, "{text}");
        }
        assert_eq!(nearest("dry-run", ["enforce", "shadow", "off"]), Some("shadow"));
        assert_eq!(nearest("open", ["allow", "local", "deny"]), Some("allow"));
        for (text, expected) in
            [("ipaddr", Some("ip")), ("ipp", Some("ip")), ("IP", Some("ip")), ("id", None), ("zip", None)]
        {
            assert_eq!(nearest(text, ["path", "ip"]), expected, "{text}");
        }
    }
}
