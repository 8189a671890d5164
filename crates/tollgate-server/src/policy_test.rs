//! `tollgate policy test`: unit tests of a policy. The engine of the server decides about the requests of a test file,
//! on a clock that follows the file, and what it decides is compared with what the file expects.

use std::path::{Path, PathBuf};

use tollgate::Policy;
use tollgate::policy::FILE_BYTES_MAX;

use crate::cli::TestArguments;
use crate::console::Console;
use crate::policy_file::{self, Rules};
use crate::{FAILURE, SUCCESS, USAGE, disk};

mod expectation;
mod file;
mod run;
mod report;
mod junit;
mod record;

use file::{TestCase, TestFile};
use report::FileResult;

/// Tests every file, and returns whether all cases pass.
///
/// # Errors
/// When nothing was tested or recorded.
pub(crate) fn run(arguments: &TestArguments, console: &mut Console) -> Result<u8, String> {
    if arguments.record {
        console.text(record::recorded(arguments)?);
        return Ok(SUCCESS);
    }
    let files: Vec<FileResult> = arguments.files.iter().map(|path| tested(path, arguments)).collect();
    if arguments.json {
        console.line(report::json_of(&files));
    } else {
        report::show(&files, console);
    }
    if let Some(path) = &arguments.junit
        && let Err(error) = std::fs::write(path, junit::document(&files))
    {
        return Err(format!("{}: {error}; name a file that can be written", path.display()));
    }
    let (passed, failed) = report::counts(&files);
    if files.iter().any(|file| file.outcome.is_err()) {
        return Ok(USAGE);
    }
    // A run without a case has tested nothing.
    if passed + failed == 0 {
        let filter = arguments.filter.as_deref().unwrap_or_default();
        return Err(format!("--filter: no case has {filter:?} in its name; accepted: a part of one"));
    }
    Ok(if failed == 0 { SUCCESS } else { FAILURE })
}

/// Tests one file.
fn tested(path: &Path, arguments: &TestArguments) -> FileResult {
    let name = path.display().to_string();
    let mut policy_name = String::new();
    let outcome = read(path, &name).and_then(|file| {
        let of_file = || path.parent().unwrap_or(Path::new("")).join(&file.policy);
        let policy_path = arguments.policy.clone().unwrap_or_else(of_file);
        policy_name = policy_path.display().to_string();
        let policy = policy(&policy_path)?;
        file.check_names(&name, &policy).map_err(|findings| findings.to_string())?;
        let is_chosen =
            |case: &&TestCase| arguments.filter.as_deref().is_none_or(|filter| case.name.contains(filter));
        let cases: Vec<&TestCase> = file.cases.iter().filter(is_chosen).collect();
        Ok(run::run(policy, &cases))
    });
    FileResult { name, policy: policy_name, outcome }
}

fn read(path: &Path, name: &str) -> Result<TestFile, String> {
    let bytes = disk::read(path, FILE_BYTES_MAX as u64).map_err(|error| {
        let (reason, cure) = disk::refusal(&error);
        format!("{name}: {reason}; {cure}")
    })?;
    file::read(name, &bytes).map_err(|findings| findings.to_string())
}

fn policy(path: &PathBuf) -> Result<Policy, String> {
    match policy_file::load(Some(path)).map_err(|error| error.to_string())?.rules {
        Rules::Native(policy) => Ok(policy),
        Rules::Compat(..) => Err(format!(
            "{}: a configuration of another program; `tollgate policy convert` makes a policy of it, which can be tested",
            path.display()
        )),
    }
}
