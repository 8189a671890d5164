//! The results of tests for people, and as JSON.

use serde_json::{Value, json};

use super::run::{CaseResult, Mismatch};
use crate::console::{Console, Style};
use crate::text::plain;
use crate::time_text::people;

/// The result of a test file.
#[derive(Debug)]
pub(super) struct FileResult {
    pub(super) name: String,
    /// The policy that was tested, as its path was resolved.
    pub(super) policy: String,
    /// The results of its cases, or why it cannot be tested.
    pub(super) outcome: Result<Vec<CaseResult>, String>,
}

impl FileResult {
    fn cases(&self) -> &[CaseResult] {
        self.outcome.as_deref().unwrap_or_default()
    }
}

/// How many cases passed, and how many failed.
pub(super) fn counts(files: &[FileResult]) -> (usize, usize) {
    let cases = || files.iter().flat_map(FileResult::cases);
    let passed = cases().filter(|case| case.mismatches.is_empty()).count();
    (passed, cases().count() - passed)
}

/// A mismatch in a line.
pub(super) fn headline(mismatch: &Mismatch) -> String {
    let Mismatch { request, after_ms, expected, got, .. } = mismatch;
    format!("request {request} at {}: expected {expected}, got {got}", people(*after_ms))
}

/// Prints the results for people. Files that cannot be tested are problems.
pub(super) fn show(files: &[FileResult], console: &mut Console) {
    for file in files {
        if let Err(problem) = &file.outcome {
            console.problem(problem);
        }
        for case in file.cases() {
            show_case(file, case, console);
        }
    }
    let (passed, failed) = counts(files);
    let cases = if passed + failed == 1 { "case" } else { "cases" };
    console.line(format_args!("{} {cases}: {passed} passed, {failed} failed", passed + failed));
}

fn show_case(file: &FileResult, case: &CaseResult, console: &mut Console) {
    let (name, place) = (plain(&case.name), format!("{}:{}", file.name, case.line));
    if case.mismatches.is_empty() {
        let word = console.painted("ok  ", Style::Good);
        let requests = if case.requests == 1 { "request" } else { "requests" };
        console.line(format_args!("{word} {place}: {name} ({} {requests})", case.requests));
        return;
    }
    let word = console.painted("FAIL", Style::Bad);
    console.line(format_args!("{word} {place}: {name}"));
    for mismatch in &case.mismatches {
        console.line(format_args!("     {}:{}: {}", file.name, mismatch.line, plain(&headline(mismatch))));
        if !mismatch.explanation.is_empty() {
            console.line(format_args!("       {}", plain(&mismatch.explanation)));
        }
    }
}

/// The results as JSON.
pub(super) fn json_of(files: &[FileResult]) -> Value {
    let (passed, failed) = counts(files);
    let files: Vec<Value> = files.iter().map(json_of_file).collect();
    json!({ "passed": passed, "failed": failed, "files": files })
}

fn json_of_file(file: &FileResult) -> Value {
    let case = |case: &CaseResult| {
        let mismatches: Vec<Value> = case.mismatches.iter().map(json_of_mismatch).collect();
        json!({
            "name": case.name, "line": case.line, "requests": case.requests,
            "passed": mismatches.is_empty(), "mismatches": mismatches,
        })
    };
    match &file.outcome {
        Ok(cases) => json!({
            "file": file.name, "policy": file.policy,
            "cases": cases.iter().map(case).collect::<Vec<Value>>(),
        }),
        Err(problem) => json!({ "file": file.name, "error": problem, "cases": [] }),
    }
}

fn json_of_mismatch(mismatch: &Mismatch) -> Value {
    json!({
        "line": mismatch.line, "request": mismatch.request, "after_ms": mismatch.after_ms,
        "expected": mismatch.expected, "got": mismatch.got, "explanation": mismatch.explanation,
    })
}
