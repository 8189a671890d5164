//! `tollgate policy check`: prints the meaning of each limit of a file, and every problem.

use serde_json::{Value, json};
use tollgate::Clock;
use tollgate::policy::{Finding, Severity};

use crate::cli::CheckArguments;
use crate::config;
use crate::console::Console;
use crate::identity::Identity;
use crate::policy_file::{self, Loaded, PolicyFileError};
use crate::policy_spelling::misspelt;
use crate::policy_warnings::{Doubts, UntrustedAttributes, exceptions};
use crate::reload::ServedRequests;
use crate::text::counted;
use crate::{FAILURE, SUCCESS};

/// Checks every file, even if others have problems.
///
/// # Errors
/// When the config cannot be used.
pub(crate) fn run(arguments: &CheckArguments, console: &mut Console) -> Result<u8, String> {
    let mut status = SUCCESS;
    let mut config = config::load(arguments.config.as_deref(), &[])?;
    config.open_reader(Clock::precise().now())?;
    let ServedRequests { reader, supply, ends } = config.served();
    let (identity, strangers) = (Identity::of(&reader), UntrustedAttributes::of(&reader));
    let mut reports = Vec::new();
    let mut described = false;
    for path in &arguments.files {
        let checked = match policy_file::load_for(Some(path), identity.credentials()) {
            Ok(loaded) => {
                let about = Doubts { file: &loaded.name, policy: loaded.rules.policy() };
                let mut doubts = misspelt(about, &reader, supply);
                doubts.extend(strangers.warnings(about));
                doubts.extend(exceptions(about, ends));
                doubts.sort_by_key(|doubt| (doubt.line, doubt.column));
                CheckedPolicy { loaded: Ok(loaded), doubts }
            }
            Err(error) => {
                status = status.max(error.status());
                CheckedPolicy { loaded: Err(error), doubts: Vec::new() }
            }
        };
        if arguments.deny_warnings && checked.has_warnings() {
            status = status.max(FAILURE);
        }
        if arguments.json {
            reports.push(checked.json(&path.display().to_string()));
        } else {
            if described && checked.loaded.is_ok() {
                console.line("");
            }
            described |= checked.loaded.is_ok();
            checked.show(console);
        }
    }
    if arguments.json {
        console.line(serde_json::json!({ "files": reports }));
    }
    Ok(status)
}

/// A file, and what may be wrong with it although it compiles.
struct CheckedPolicy {
    loaded: Result<Loaded, PolicyFileError>,
    doubts: Vec<Finding>,
}

impl CheckedPolicy {
    fn has_warnings(&self) -> bool {
        let is_warned = |loaded: &Loaded| !loaded.warnings.is_empty();
        !self.doubts.is_empty() || self.loaded.as_ref().is_ok_and(is_warned)
    }

    /// Prints the meaning of each limit, and every problem.
    fn show(&self, console: &mut Console) {
        let loaded = match &self.loaded {
            Ok(loaded) => loaded,
            Err(error) => return report(error, console),
        };
        let sentences = loaded.rules.sentences();
        let summary = match loaded.rules.compat() {
            None => counted(sentences.len(), "limit"),
            Some(compat) => format!("{}, {}", compat.format().name(), counted(sentences.len(), "rule")),
        };
        console.line(format_args!("{}: {summary}", loaded.name));
        for sentence in sentences {
            console.line(format_args!("  {sentence}"));
        }
        if !loaded.warnings.is_empty() {
            console.problem(&loaded.warnings);
        }
        for warning in &self.doubts {
            console.problem(warning);
        }
    }

    fn json(&self, name: &str) -> Value {
        match &self.loaded {
            Ok(loaded) => {
                let warnings: Vec<Value> = loaded.warnings.iter().chain(&self.doubts).map(finding).collect();
                json!({
                    "file": name, "valid": true, "limits": loaded.rules.sentences(), "errors": [],
                    "warnings": warnings,
                })
            }
            Err(PolicyFileError::Wrong(findings)) => {
                let (errors, warnings): (Vec<&Finding>, Vec<&Finding>) =
                    findings.iter().partition(|finding| finding.severity == Severity::Error);
                let all = |list: Vec<&Finding>| list.into_iter().map(finding).collect::<Vec<_>>();
                json!({ "file": name, "valid": false, "errors": all(errors), "warnings": all(warnings) })
            }
            Err(error) => {
                let error = json!({ "message": error.to_string() });
                json!({ "file": name, "valid": false, "errors": [error], "warnings": [] })
            }
        }
    }
}

fn finding(finding: &Finding) -> Value {
    json!({
        "line": finding.line, "column": finding.column, "field": finding.field, "limit": finding.limit,
        "message": finding.message, "accepted": finding.accepted,
    })
}

/// Prints every problem, one per line.
fn report(error: &PolicyFileError, console: &mut Console) {
    match error {
        PolicyFileError::Wrong(findings) => console.problem(findings),
        PolicyFileError::Config { .. } => console.problem(error),
        PolicyFileError::Unreadable { .. } => console.error(error),
    }
}
