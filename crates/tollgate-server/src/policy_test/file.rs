//! Reads a test file: its policy, and its cases with their requests, each with its position. The reader is that of
//! policies, so a test file fails in the words of a policy.

use std::collections::BTreeMap;

use serde::Deserialize;
use tollgate::policy::source::{Fields, Node, Position, Report, Tree, nearest, quoted};
use tollgate::policy::{Findings, Limit, Problem};
use tollgate::request::COST_MAX;
use tollgate::{CheckRequest, Policy, RequestError, Ticks, Timestamp};

use super::expectation::{Expectation, ExpectedVerdict};
use crate::cli::{GivenAttribute, GivenValue};
use crate::document;
use crate::time_text::{duration, instant};

/// When a case begins, if neither it nor its file says so: 2030-01-01T00:00:00Z, a Tuesday.
const START: Timestamp = Timestamp::from_unix_seconds(1_893_456_000);
/// Maximum number of requests of one entry, and of all cases of a file.
const REPEAT_MAX: u64 = 1_000_000;
const REQUESTS_MAX: u64 = 10_000_000;

/// The accepted forms of times.
const START_TIME: &str = "a time such as 2030-01-31T12:00:00Z";
const STEP_TIME: &str =
    "10s after the start of the case, +10s after the request before, or 2030-01-31T12:00:00Z";

/// A test file.
#[derive(Debug)]
pub(super) struct TestFile {
    /// The policy, relative to the file.
    pub(super) policy: String,
    pub(super) cases: Vec<TestCase>,
}

/// One case. Each begins with empty counters.
#[derive(Debug)]
pub(super) struct TestCase {
    pub(super) name: String,
    pub(super) line: u32,
    pub(super) start: Timestamp,
    pub(super) steps: Vec<TestStep>,
}

/// One entry of a case: a request, or several equal ones.
#[derive(Debug)]
pub(super) struct TestStep {
    pub(super) line: u32,
    pub(super) at: Timestamp,
    pub(super) repeat: u64,
    /// The time between two of several.
    pub(super) every: Ticks,
    pub(super) expectation: Expectation,
    attributes: Vec<GivenAttribute>,
    cost: u64,
    /// Where it names a limit.
    limit_at: Position,
    /// The position of its attributes.
    attributes_at: Position,
}

impl TestStep {
    /// The request.
    ///
    /// # Errors
    /// When a bound is exceeded, which the reader has reported.
    pub(super) fn request(&self) -> Result<CheckRequest<'_>, RequestError> {
        let mut request = CheckRequest::new();
        for attribute in &self.attributes {
            request.push(&attribute.name, &attribute.value)?;
        }
        request.cost(self.cost)
    }

    /// The time of the last request.
    fn end(&self) -> Timestamp {
        self.at + Ticks::from_micros(self.every.as_micros().saturating_mul(self.repeat - 1))
    }
}

/// Reads a test file.
///
/// # Errors
/// Every problem, with its position.
pub(super) fn read(name: &str, bytes: &[u8]) -> Result<TestFile, Findings> {
    let mut report = Report::new(name);
    let file = document::table(bytes, &mut report).and_then(|table| file(&table, &mut report));
    file.filter(|_| report.errors() == 0).ok_or_else(|| report.into_findings())
}

impl TestFile {
    /// Checks that the policy has the limits that the file names.
    ///
    /// # Errors
    /// Every name that it does not have.
    pub(super) fn check_names(&self, name: &str, policy: &Policy) -> Result<(), Findings> {
        let mut report = Report::new(name);
        let names: Vec<&str> = policy.limits().iter().map(Limit::name).collect();
        for (number, case) in self.cases.iter().enumerate() {
            for (index, step) in case.steps.iter().enumerate() {
                report.enter(format!("cases[{number}].requests[{index}]"), Some(&case.name));
                for GivenAttribute { name, .. } in &step.attributes {
                    if let Some(problem) = policy.attribute_problem(name) {
                        report.error(step.attributes_at, &format!("attributes.{}", quoted(name)), problem);
                    }
                }
                let Some(limit) = step.expectation.limit.as_deref() else { continue };
                if names.contains(&limit) {
                    continue;
                }
                let meant = nearest(limit, names.iter().copied());
                let meant = meant.map_or(String::new(), |meant| format!("; did you mean {meant}?"));
                let problem = Problem::new(
                    format!("the policy has no limit {}{meant}", quoted(limit)),
                    names.join(", "),
                );
                report.error(step.limit_at, "limit", problem);
            }
        }
        if report.errors() == 0 { Ok(()) } else { Err(report.into_findings()) }
    }
}

fn file(table: &Node, report: &mut Report) -> Option<TestFile> {
    let fields = Fields::of(table, "", "a table", report)?;
    fields.only(&["policy", "start", "cases"], report);
    let policy = required(&fields, "policy", "the path of a policy, relative to this file", report);
    let start = start(&fields, START, report);
    let mut cases = Vec::new();
    let mut requests = 0;
    for (number, node) in list(&fields, "cases", "a list of cases", report).iter().enumerate() {
        report.enter(format!("cases[{number}]"), None);
        let Some(case) = case(node, number, start, report) else { continue };
        requests += case.steps.iter().map(|step| step.repeat).sum::<u64>();
        if requests > REQUESTS_MAX {
            let message = format!("the cases have {requests} requests up to here");
            report.error(node.at, "", Problem::new(message, format!("at most {REQUESTS_MAX} in a file")));
        }
        if cases.iter().any(|known: &TestCase| known.name == case.name) {
            let problem = Problem::new(format!("{} is there twice", quoted(&case.name)), "each name once");
            report.error(node.at, "name", problem);
        }
        cases.push(case);
    }
    report.leave_limit();
    Some(TestFile { policy: policy?.to_owned(), cases })
}

fn case(node: &Node, number: usize, start_of_file: Timestamp, report: &mut Report) -> Option<TestCase> {
    let fields = Fields::of(node, "", "a table with name and requests", report)?;
    fields.only(&["name", "start", "requests"], report);
    let name = required(&fields, "name", "what the case shows", report)?;
    report.enter(format!("cases[{number}]"), Some(name));
    let start = start(&fields, start_of_file, report);
    let mut steps: Vec<TestStep> = Vec::new();
    let nodes = list(&fields, "requests", "a list of requests", report);
    for (index, node) in nodes.iter().enumerate() {
        report.enter(format!("cases[{number}].requests[{index}]"), Some(name));
        let before = steps.last().map_or(start, TestStep::end);
        steps.extend(step(node, (start, before), report));
    }
    report.enter(format!("cases[{number}]"), Some(name));
    if steps.len() == nodes.len() && !steps.is_empty() && !steps.iter().any(|step| step.expectation.is_some())
    {
        let accepted = "at least one request with expect, limit, remaining or no_limit_applies";
        report.error(node.at, "", Problem::new("expects nothing, so it cannot fail", accepted));
    }
    Some(TestCase { name: name.to_owned(), line: node.at.line, start, steps })
}

/// The fields of an entry, as they are written.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct StepFields {
    at: Option<String>,
    attributes: BTreeMap<String, String>,
    cost: Option<u64>,
    repeat: Option<u64>,
    every: Option<String>,
    expect: Option<ExpectedVerdict>,
    limit: Option<String>,
    remaining: Option<u64>,
    retry_after: Option<String>,
    wait: Option<String>,
    no_limit_applies: Option<bool>,
}

fn step(node: &Node, (start, before): (Timestamp, Timestamp), report: &mut Report) -> Option<TestStep> {
    let errors = report.errors();
    let fields: StepFields = document::settings(node, report)?;
    let place = |name: &str| field_position(node, name);
    let time = |name: &str, text: Option<&str>, report: &mut Report| {
        text.and_then(|text| match duration(text) {
            Ok(time) => Some(time),
            Err(problem) => refuse(report, place(name), name, &problem),
        })
    };
    let at = match fields.at.as_deref().map_or(Ok(before), |text| moment(text, start, before)) {
        Ok(at) => at,
        Err(problem) => {
            report.error(place("at"), "at", problem);
            before
        }
    };
    let repeat = fields.repeat.unwrap_or(1);
    if repeat == 0 || repeat > REPEAT_MAX {
        let message = format!("{repeat} is not accepted");
        report.error(place("repeat"), "repeat", Problem::new(message, format!("1 to {REPEAT_MAX}")));
    }
    let every = time("every", fields.every.as_deref(), report);
    let expectation = Expectation {
        verdict: fields.expect,
        limit: fields.limit,
        remaining: fields.remaining,
        retry_after: time("retry_after", fields.retry_after.as_deref(), report),
        wait: time("wait", fields.wait.as_deref(), report),
        no_limit_applies: fields.no_limit_applies,
    };
    for (name, verdict) in expectation.conflicts() {
        let problem = Problem::new("has no meaning here", format!("beside expect: {verdict} only"));
        report.error(place(name), name, problem);
    }
    let cost = fields.cost.unwrap_or(1);
    if cost > COST_MAX {
        report.error(place("cost"), "cost", Problem::new("too large", format!("at most {COST_MAX}")));
    }
    let step = TestStep {
        line: node.at.line,
        at,
        repeat: repeat.max(1),
        every: every.unwrap_or_default(),
        expectation,
        attributes: fields.attributes.into_iter().map(attribute).collect(),
        cost: cost.min(COST_MAX),
        limit_at: place("limit"),
        attributes_at: place("attributes"),
    };
    if let Err(error) = step.request() {
        report.error(place("attributes"), "attributes", Problem::new(error.to_string(), ""));
    }
    Some(step).filter(|_| report.errors() == errors)
}

/// A whole number is sent as one. Limits treat it as its text.
fn attribute((name, value): (String, String)) -> GivenAttribute {
    let value = value.parse().map_or(GivenValue::Text(value), GivenValue::Number);
    GivenAttribute { name, value }
}

/// When a request comes.
fn moment(text: &str, start: Timestamp, before: Timestamp) -> Result<Timestamp, Problem> {
    let wrong = |what: &str| Problem::new(format!("{} {what}", quoted(text)), STEP_TIME);
    let at = match text.strip_prefix('+') {
        Some(rest) => before + duration(rest).map_err(|_| wrong("is no time"))?,
        None => match (duration(text), instant(text)) {
            (Ok(after), _) => start + after,
            (_, Ok(at)) => at,
            _ => return Err(wrong("is no time")),
        },
    };
    if at < before {
        return Err(wrong("is earlier than the request before"));
    }
    if at > Timestamp::LAST {
        return Err(wrong("is too late: the clock ends in the year 2109"));
    }
    Ok(at)
}

/// The time at which a case begins.
fn start(fields: &Fields<'_>, otherwise: Timestamp, report: &mut Report) -> Timestamp {
    let Some(text) = fields.text("start", START_TIME, report) else { return otherwise };
    instant(text).unwrap_or_else(|_| {
        report.error(
            fields.place("start"),
            "start",
            Problem::new(format!("{} is no time", quoted(text)), START_TIME),
        );
        otherwise
    })
}

/// A field that must be there.
fn required<'n>(fields: &Fields<'n>, name: &str, accepted: &str, report: &mut Report) -> Option<&'n str> {
    if !fields.has(name) {
        report.error(fields.place(name), name, Problem::new("missing", accepted));
    }
    fields.text(name, accepted, report)
}

/// A list that must be there, and have items.
fn list<'n>(fields: &Fields<'n>, name: &str, accepted: &str, report: &mut Report) -> &'n [Node] {
    let message = match fields.get(name) {
        None => "missing".to_owned(),
        Some(Node { tree: Tree::List(items), .. }) if !items.is_empty() => return items,
        Some(Node { tree: Tree::List(_), .. }) => "is empty".to_owned(),
        Some(other) => format!("is {}", other.kind()),
    };
    report.error(fields.place(name), name, Problem::new(message, accepted));
    &[]
}

/// Reports a problem of the form `cause; accepted: …`.
fn refuse<T>(report: &mut Report, at: Position, field: &str, problem: &str) -> Option<T> {
    let (message, accepted) = problem.split_once("; accepted: ").unwrap_or((problem, ""));
    report.error(at, field, Problem::new(message, accepted));
    None
}

/// The position of the value of a field, or of its table.
fn field_position(table: &Node, name: &str) -> Position {
    let Tree::Table(entries) = &table.tree else { return table.at };
    entries.iter().find(|entry| entry.key == name).map_or(table.at, |entry| entry.node.at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(text: &str) -> String {
        read("t.yaml", text.as_bytes()).unwrap_err().to_string()
    }

    /// Times are after the start, after the request before, or absolute. Without a time, a request comes with the one
    /// before.
    #[test]
    fn times_are_relative_or_absolute() {
        let text = "policy: p.yaml\nstart: 2030-01-01T00:00:00Z\ncases:\n- name: a\n  requests:\n  \
                    - {at: 1s, repeat: 3, every: 2s, expect: allow}\n  - {at: +1s}\n  - {}\n  \
                    - {at: 2030-01-01T00:01:00Z}\n";
        let file = read("t.yaml", text.as_bytes()).unwrap();
        let steps = &file.cases[0].steps;
        let after: Vec<u64> = steps.iter().map(|step| step.at.since(START).ceil_seconds()).collect();
        assert_eq!(after, [1, 6, 6, 60]);
        assert_eq!((file.cases[0].line, steps[1].line), (4, 7));
    }

    /// Every problem is reported at its place, with what would be accepted.
    #[test]
    fn problems_have_their_place() {
        let case = |fields: &str| format!("policy: p\ncases:\n- name: a\n  requests:\n  - {{{fields}}}\n");
        for (text, expected) in [
            (
                "cases: []".to_owned(),
                "t.yaml:1:1: policy: missing; accepted: the path of a policy, relative to this file\nt.yaml:1:8: cases: is empty; accepted: a list of cases",
            ),
            (
                "policy: p\ncase: []\ncases: x".to_owned(),
                "t.yaml:2:1: case: unknown field; did you mean cases? accepted: policy, start, cases\nt.yaml:3:8: cases: is a single value; accepted: a list of cases",
            ),
            (
                case("expects: allow"),
                "t.yaml:5:6: cases[0] \"a\".requests[0].expects: unknown field; did you mean expect? accepted: at, attributes, cost, repeat, every, expect, limit, remaining, retry_after, wait, no_limit_applies",
            ),
            (
                case("expect: alow"),
                "t.yaml:5:14: cases[0] \"a\".requests[0].expect: alow is unknown; did you mean allow? accepted: allow, deny, wait, never",
            ),
            (
                case("expect: allow, repeat: 0"),
                "t.yaml:5:29: cases[0] \"a\".requests[0].repeat: 0 is not accepted; accepted: 1 to 1000000",
            ),
            (
                case("expect: allow, retry_after: 5s"),
                "t.yaml:5:34: cases[0] \"a\".requests[0].retry_after: has no meaning here; accepted: beside expect: deny only",
            ),
            (
                case("expect: deny, retry_after: 5"),
                "t.yaml:5:33: cases[0] \"a\".requests[0].retry_after: not a duration; accepted: 0s and more, such as 100ms, 2s, 1h30m or 7d",
            ),
            (
                case("at: soon, expect: allow"),
                "t.yaml:5:10: cases[0] \"a\".requests[0].at: soon is no time; accepted: 10s after the start of the case, +10s after the request before, or 2030-01-31T12:00:00Z",
            ),
            (
                case("attributes: {a: b}"),
                "t.yaml:3:3: cases[0] \"a\": expects nothing, so it cannot fail; accepted: at least one request with expect, limit, remaining or no_limit_applies",
            ),
        ] {
            assert_eq!(problems(&text), expected, "{text}");
        }
        let two = "policy: p\ncases:\n- {name: a, requests: [{expect: allow}, {at: 1970-01-01T00:00:00Z}]}\n- {name: a, requests: [{expect: deny}]}\n";
        let found = problems(two);
        assert!(found.contains("is earlier than the request before"), "{found}");
        assert!(found.contains("a is there twice; accepted: each name once"), "{found}");
    }
}
