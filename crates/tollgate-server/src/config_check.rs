//! `tollgate config check`: reports every problem of config files.

use serde_json::{Value, json};

use crate::cli::ConfigCheckArguments;
use crate::config;
use crate::console::Console;
use crate::{FAILURE, SUCCESS, USAGE};

/// Checks every file, even if others have problems.
pub(crate) fn run(arguments: &ConfigCheckArguments, console: &mut Console) -> u8 {
    let mut status = SUCCESS;
    let mut reports: Vec<Value> = Vec::new();
    for path in &arguments.files {
        let name = path.display().to_string();
        let (errors, warnings): (Vec<String>, Vec<String>) = match config::load(Some(path), &[]) {
            Ok(config) => (Vec::new(), config.warnings),
            Err(problem) => {
                // Each line but the first is a finding. A file that cannot be read has none.
                let findings = problem.strip_prefix(config::ERRORS);
                status = status.max(if findings.is_some() { FAILURE } else { USAGE });
                let findings = findings.unwrap_or(&problem);
                (findings.lines().map(str::to_owned).collect(), Vec::new())
            }
        };
        if arguments.json {
            reports.push(
                json!({ "file": name, "valid": errors.is_empty(), "errors": errors, "warnings": warnings }),
            );
            continue;
        }
        if errors.is_empty() {
            console.line(format_args!("{name}: accepted"));
        }
        errors.iter().for_each(|error| console.problem(error));
        warnings.iter().for_each(|warning| console.problem(warning));
    }
    if arguments.json {
        console.line(json!({ "files": reports }));
    }
    status
}
