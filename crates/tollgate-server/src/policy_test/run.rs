//! Runs the cases of a test file: the engine of the server decides, on a clock that follows the file.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use tollgate::{CheckRequest, Clock, Engine, MemoryStore, Policy, Secret, Ticks, Timestamp};

use super::file::{TestCase, TestStep};

/// Memory for the counters of a case.
const MEMORY_BYTES: u64 = 16 << 20;
/// The secret of the key hash. It is the same each time, so that `enforce_percent` chooses the same keys.
const SECRET: u64 = 0;

/// The result of a case.
#[derive(Debug)]
pub(super) struct CaseResult {
    pub(super) name: String,
    pub(super) line: u32,
    /// How many requests were decided.
    pub(super) requests: u64,
    /// How long it took to decide about them, by the clock of this machine.
    pub(super) took: Ticks,
    /// The first mismatch of each entry; empty if the case passes.
    pub(super) mismatches: Vec<Mismatch>,
}

/// A decision that is not as expected.
#[derive(Debug)]
pub(super) struct Mismatch {
    pub(super) line: u32,
    /// The number of the request among all of its case, from 1.
    pub(super) request: u64,
    /// The time since the start of the case, in milliseconds.
    pub(super) after_ms: u64,
    pub(super) expected: String,
    pub(super) got: String,
    /// Why, by the limit that matters.
    pub(super) explanation: String,
}

/// The engine of the server, with empty counters in memory.
pub(super) fn engine(policy: Policy, start: Timestamp) -> Engine {
    let store = MemoryStore::new(MEMORY_BYTES, start);
    Engine::builder().policy(policy).store(store).secret(Secret::repeatable(SECRET)).build()
}

/// Runs the cases of a file, each with empty counters.
pub(super) fn run(policy: Policy, cases: &[&TestCase]) -> Vec<CaseResult> {
    let start = cases.iter().map(|case| case.start).min().unwrap_or_default();
    let first = engine(policy, start);
    let fresh =
        |case: &TestCase| first.maintenance().siblings().candidate(first.policy(), MEMORY_BYTES, case.start);
    let clock = Clock::precise();
    let timed = |case: &&TestCase| {
        let begun = clock.now();
        let result = run_case(case, &fresh(case));
        CaseResult { took: clock.now().since(begun), ..result }
    };
    cases.iter().map(timed).collect()
}

fn run_case(case: &TestCase, engine: &Engine) -> CaseResult {
    let (mut requests, mut mismatches) = (0, Vec::new());
    for step in &case.steps {
        let before = requests;
        requests += step.repeat;
        match run_step(step, engine) {
            Ok(None) => {}
            Ok(Some((index, at, mismatch))) => mismatches.push(Mismatch {
                request: before + index,
                after_ms: at.since(case.start).ceil_millis(),
                ..mismatch
            }),
            Err(got) => mismatches.push(Mismatch {
                line: step.line,
                request: before + 1,
                after_ms: step.at.since(case.start).ceil_millis(),
                expected: step.expectation.text(),
                got,
                explanation: String::new(),
            }),
        }
    }
    CaseResult { name: case.name.clone(), line: case.line, requests, took: Ticks::ZERO, mismatches }
}

/// Decides about each request of an entry. Returns the first that is not as expected, with its number from 1.
fn run_step(step: &TestStep, engine: &Engine) -> Result<Option<(u64, Timestamp, Mismatch)>, String> {
    let request = step.request().map_err(|error| error.to_string())?;
    let mut found = None;
    let mut now = step.at;
    for index in 1..=step.repeat {
        let decision = engine.try_check(&request, now).map_err(|error| error.to_string())?;
        let expectation = &step.expectation;
        // Numbers differ from one equal request to the next: those of the last are compared.
        let is_met =
            expectation.has_verdict(&decision) && (index < step.repeat || expectation.has_numbers(&decision));
        if found.is_none() && !is_met {
            let limit = expectation.limit.as_deref().or_else(|| decision.refused_by());
            let mismatch = Mismatch {
                line: step.line,
                request: index,
                after_ms: 0,
                expected: expectation.text(),
                got: expectation.text_of(&decision),
                explanation: explained(engine, &request, limit, now),
            };
            found = Some((index, now, mismatch));
        }
        now = now + step.every;
    }
    Ok(found)
}

/// The output of `tollgate explain` about the limit with this name, or about the first that applies.
fn explained(engine: &Engine, request: &CheckRequest<'_>, limit: Option<&str>, now: Timestamp) -> String {
    let explaining = pin!(engine.operator().explain(request, now));
    // Memory never waits.
    let Poll::Ready(explanation) = explaining.poll(&mut Context::from_waker(Waker::noop())) else {
        return String::new();
    };
    if let Some(fault) = &explanation.fault {
        return fault.to_string();
    }
    let named = limit.and_then(|name| explanation.limits.iter().find(|limit| limit.name == name));
    let applies = || explanation.limits.iter().find(|limit| limit.state.is_some());
    match named.or_else(applies) {
        None => "no limit applies to these attributes".to_owned(),
        Some(limit) if limit.unmet.is_empty() => limit.sentence.clone(),
        Some(limit) => {
            let unmet: Vec<String> = limit.unmet.iter().map(ToString::to_string).collect();
            format!("{} does not apply: {}", limit.name, unmet.join("; "))
        }
    }
}
