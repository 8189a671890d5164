//! `tollgate policy check`: prints the meaning of each limit of a file, and every problem.

use tollgate::Clock;
use tollgate_tower::attributes::Reader;

use crate::callers::CallersFile;
use crate::cli::CheckArguments;
use crate::config;
use crate::console::Console;
use crate::identity::Identity;
use crate::policy_file::{self, PolicyFileError};
use crate::policy_warnings::{Ends, UntrustedAttributes, exceptions};
use crate::{FAILURE, SUCCESS, USAGE};

/// Checks every file, even if others have problems.
pub(crate) fn run(arguments: &CheckArguments, console: &mut Console) -> u8 {
    let mut status = SUCCESS;
    let mut described = false;
    let (reader, ends) = match reader(arguments) {
        Ok(read) => read,
        Err(problem) => {
            console.problem(format_args!("tollgate: {problem}"));
            return USAGE;
        }
    };
    let (identity, strangers) = (Identity::of(&reader), UntrustedAttributes::of(&reader));
    for path in &arguments.files {
        match policy_file::load_for(Some(path), identity.credentials()) {
            Ok(loaded) => {
                if std::mem::replace(&mut described, true) {
                    console.line("");
                }
                let sentences = loaded.rules.sentences();
                let summary = match loaded.rules.compat() {
                    None => counted(sentences.len(), "limit"),
                    Some(compat) => {
                        format!("{}, {}", compat.format().name(), counted(sentences.len(), "rule"))
                    }
                };
                console.line(format_args!("{}: {summary}", loaded.name));
                for sentence in sentences {
                    console.line(format_args!("  {sentence}"));
                }
                if !loaded.warnings.is_empty() {
                    console.problem(&loaded.warnings);
                }
                let policy = loaded.rules.policy();
                for warning in strangers.warnings(policy).into_iter().chain(exceptions(policy, ends)) {
                    console.problem(format_args!("{}: warning: {warning}", loaded.name));
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

/// How requests for these policies are read, and whether the server sees how they end.
fn reader(arguments: &CheckArguments) -> Result<(Reader, Ends), String> {
    let config = config::load(arguments.config.as_deref(), &[])?;
    let mut reader = config.reader;
    if let Some(path) = &config.callers {
        reader.callers = Some(CallersFile::open(path, &reader, Clock::precise().now())?.live());
    }
    Ok((reader, if config.routes.is_empty() { Ends::Unknown } else { Ends::Seen }))
}

/// Prints every problem, one per line.
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
