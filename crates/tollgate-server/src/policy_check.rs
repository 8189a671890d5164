//! `tollgate policy check`: what each limit of a file means, and everything that is wrong with it.

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
            }
            Err(error) => {
                report(&error, console);
                status = FAILURE;
            }
        }
    }
    status
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
