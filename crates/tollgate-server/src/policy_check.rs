//! `tollgate policy check`: what each limit of a file means, and everything that is wrong with it.

use tollgate::{CheckRequest, Policy};

use crate::cli::CheckArguments;
use crate::console::Console;
use crate::policy_file::{self, PolicyFileError};
use crate::{FAILURE, SUCCESS};

/// Checks every file, whatever the others are like.
pub(crate) fn run(arguments: &CheckArguments, console: &mut Console) -> u8 {
    let mut status = SUCCESS;
    let mut described = false;
    for path in &arguments.files {
        match policy_file::load(Some(path)) {
            Ok(loaded) => {
                if std::mem::replace(&mut described, true) {
                    console.line("");
                }
                let sentences = loaded.rules.sentences();
                let summary = match loaded.rules.foreign() {
                    None => counted(sentences.len(), "limit"),
                    Some(foreign) => {
                        format!("{}, {}", foreign.format().name(), counted(sentences.len(), "rule"))
                    }
                };
                console.line(format_args!("{}: {summary}", loaded.name));
                for sentence in sentences {
                    console.line(format_args!("  {sentence}"));
                }
                if !loaded.warnings.is_empty() {
                    console.problem(&loaded.warnings);
                }
                if let Some(doubt) = keyless(loaded.rules.policy()) {
                    console.problem(format_args!("{}: warning: {doubt}", loaded.name));
                }
            }
            Err(error) => {
                report(&error, console);
                status = FAILURE;
            }
        }
    }
    status
}

/// What is doubtful about a policy that limits whoever names a key, and nobody else: a client need only leave it out.
pub(crate) fn keyless(policy: &Policy) -> Option<&'static str> {
    let meets = |key: Option<&str>| {
        let attributes = [("ip", "203.0.113.7"), ("method", "GET"), ("host", "example.com"), ("path", "/")];
        let mut request = CheckRequest::new();
        for (name, value) in attributes.into_iter().chain(key.map(|key| ("api_key", key))) {
            request.push(name, value).ok()?;
        }
        // One that cannot be counted is refused.
        Some(policy.matches(&request).map_or(true, |met| !met.is_empty()))
    };
    (meets(Some("k"))? && !meets(None)?).then_some(
        "limits: a request without api_key meets none, so whoever sends no key is not limited; accepted: a limit by ip beside it, or \
         limits by an attribute that falls back, such as `caller: {first_of: [api_key, ip]}` under `attributes` in the config",
    )
}

/// Tells every problem, one to a line.
fn report(error: &PolicyFileError, console: &mut Console) {
    match error {
        PolicyFileError::Wrong(findings) => console.problem(findings),
        PolicyFileError::Unreadable { .. } => console.problem(error),
    }
}

fn counted(number: usize, what: &str) -> String {
    match number {
        1 => format!("1 {what}"),
        _ => format!("{number} {what}s"),
    }
}
