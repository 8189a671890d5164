//! Writes a test file from a log: its first requests, and what the policy decides about them.

use std::fmt::Write;

use tollgate::policy::Limit;
use tollgate::time::WallOffset;
use tollgate::{CheckRequest, Decision, Policy, Ticks, Timestamp, Verdict};
use tollgate_sim::log::{Entry, Reader as LogReader};
use tollgate_sim::replay::Describe;

use super::expectation::Expectation;
use super::file;
use super::run::{engine, run};
use crate::cli::{GivenValue, TestArguments};
use crate::decision_json::verdict_name;
use crate::identity::Identity;
use crate::replay::{self, RequestReader};
use crate::time_text::rfc3339;

/// The name of the written file in messages.
const NAME: &str = "the recorded test";

/// A request of the log.
struct RecordedRequest {
    at: Timestamp,
    attributes: Vec<(String, GivenValue)>,
    cost: u64,
}

/// The text of a test file.
///
/// # Errors
/// When a log or the policy cannot be read, when the log has no request, and when the test would not pass.
pub(super) fn recorded(arguments: &TestArguments) -> Result<String, String> {
    let Some(path) = &arguments.policy else {
        return Err("--record: name a policy with --policy".to_owned());
    };
    let reader = replay::request_reader(arguments.config.as_deref())?;
    let identity = Identity::of(&reader);
    let policy = replay::native(path, &identity)?;
    let live = RequestReader::new(reader, std::iter::once(&policy));
    let mut logs = replay::opened(&arguments.files, &replay::mapping(&arguments.columns))?;
    let requests = requests(&mut logs, &live, &policy, arguments.max_requests)?;
    let text = written(&requests, policy, &path.display().to_string())?;
    verified(&text, replay::native(path, &identity)?)?;
    Ok(text)
}

/// The first requests, in the order in which they came, with the attributes that the policy uses.
fn requests(
    logs: &mut LogReader,
    live: &RequestReader,
    policy: &Policy,
    most: u64,
) -> Result<Vec<RecordedRequest>, String> {
    let mut requests = Vec::new();
    while (requests.len() as u64) < most {
        let record = match logs.read().map_err(|error| error.to_string())? {
            Entry::Record(record) => record,
            Entry::Bad => continue,
            Entry::End => break,
        };
        // A line that no server takes for a request is none.
        requests.extend(live.describe(&record, |request| owned(request, policy, record.arrival)).ok());
    }
    if requests.is_empty() {
        return Err(replay::no_requests(logs, logs.records() + logs.bad_lines()));
    }
    requests.sort_by_key(|request| request.at);
    Ok(requests)
}

fn owned(request: &CheckRequest<'_>, policy: &Policy, at: Timestamp) -> RecordedRequest {
    let used = request.attributes().iter().filter(|given| policy.uses(given.name));
    let attributes = used.map(|given| (given.name.to_owned(), given.value.into())).collect();
    RecordedRequest { at, attributes, cost: request.units() }
}

/// Lets the policy decide, and writes down what it decides.
fn written(requests: &[RecordedRequest], policy: Policy, path: &str) -> Result<String, String> {
    let start = requests.first().map(|request| request.at).unwrap_or_default();
    let engine = engine(policy, start);
    let mut text = format!(
        "# Written by `tollgate policy test --record`: what the policy decided. Change what it should decide.\n\
         policy: {}\nstart: {}\ncases:\n  - name: the first requests of the log\n    requests:\n",
        quoted(path)?,
        rfc3339(start, WallOffset::NONE)
    );
    for recorded in requests {
        let mut request = CheckRequest::new();
        for (name, value) in &recorded.attributes {
            request.push(name, value).map_err(|error| error.to_string())?;
        }
        let request = request.cost(recorded.cost).map_err(|error| error.to_string())?;
        let decision = engine.try_check(&request, recorded.at).map_err(|error| error.to_string())?;
        let fields = [request_fields(recorded, start)?, decision_fields(&decision)?].join(", ");
        // Writing to a string cannot fail.
        let _ = writeln!(text, "      - {{ {fields} }}");
    }
    Ok(text)
}

fn request_fields(request: &RecordedRequest, start: Timestamp) -> Result<String, String> {
    let mut attributes = Vec::new();
    for (name, value) in &request.attributes {
        let value = match value {
            GivenValue::Text(text) => quoted(text)?,
            GivenValue::Number(number) => number.to_string(),
        };
        attributes.push(format!("{}: {value}", quoted(name)?));
    }
    let cost = if request.cost == 1 { String::new() } else { format!(", cost: {}", request.cost) };
    Ok(format!("at: {}, attributes: {{ {} }}{cost}", span(request.at.since(start)), attributes.join(", ")))
}

fn decision_fields(decision: &Decision) -> Result<String, String> {
    let mut fields = vec![format!("expect: {}", verdict_name(decision.verdict()))];
    let is_limit =
        |name: &&str| decision.policy().limits().iter().map(Limit::name).any(|limit| limit == *name);
    if let Some(limit) = decision.refused_by().filter(is_limit) {
        fields.push(format!("limit: {}", quoted(limit)?));
    }
    if let Verdict::Wait(wait) = decision.verdict() {
        fields.push(format!("wait: {}ms", wait.ceil_millis()));
    }
    if let (Some(retry), Verdict::Deny { .. }) = (decision.retry_advice(), decision.verdict()) {
        fields.push(format!("retry_after: {}ms", retry.ceil_millis()));
    }
    if decision.meets_no_limit() {
        fields.push("no_limit_applies: true".to_owned());
    } else if let Some((_, remaining)) =
        Expectation::default().left(decision).filter(|_| decision.is_allowed())
    {
        fields.push(format!("remaining: {remaining}"));
    }
    Ok(fields.join(", "))
}

/// A duration as a test file has it.
fn span(time: Ticks) -> String {
    let micros = time.as_micros();
    match (micros % 1_000_000, micros % 1_000) {
        (0, _) => format!("{}s", micros / 1_000_000),
        (_, 0) => format!("{}ms", micros / 1_000),
        _ => format!("{micros}us"),
    }
}

/// A text in quotes: one of JSON is one of YAML.
fn quoted(text: &str) -> Result<String, String> {
    serde_json::to_string(text).map_err(|error| error.to_string())
}

/// Checks that the test can be read, and passes.
fn verified(text: &str, policy: Policy) -> Result<(), String> {
    let file = file::read(NAME, text.as_bytes()).map_err(|findings| findings.to_string())?;
    let cases: Vec<&file::TestCase> = file.cases.iter().collect();
    let mismatch = run(policy, &cases).into_iter().flat_map(|case| case.mismatches).next();
    mismatch.map_or(Ok(()), |mismatch| {
        Err(format!(
            "{NAME}: line {} does not pass: expected {}, got {}",
            mismatch.line, mismatch.expected, mismatch.got
        ))
    })
}
