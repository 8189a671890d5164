//! `tollgate policy convert`: prints a compat configuration as a Tollgate policy. Rules that would be lost are listed
//! on standard error and make it fail: an operator who overlooks the notes must not activate a policy that leaves
//! requests unlimited.

use tollgate::Policy;
use tollgate_compat::Conversion;

use crate::cli::ConvertArguments;
use crate::console::Console;
use crate::policy_file;
use crate::{FAILURE, SUCCESS, USAGE};

/// Converts, and compiles the result before it is used.
pub(crate) fn run(arguments: &ConvertArguments, console: &mut Console) -> u8 {
    let loaded = match policy_file::load(Some(&arguments.file)) {
        Ok(loaded) => loaded,
        Err(error) => {
            console.problem(&error);
            return FAILURE;
        }
    };
    if !loaded.warnings.is_empty() {
        console.problem(&loaded.warnings);
    }
    let Some(compat) = loaded.rules.compat() else {
        console.problem(format_args!(
            "{}: is a Tollgate policy already; there is nothing to convert",
            loaded.name
        ));
        return FAILURE;
    };
    let Conversion { text, lost } = match compat.converted(arguments.domain.as_deref()) {
        Ok(converted) => converted,
        Err(why) => {
            console.problem(format_args!("{}: {why}", loaded.name));
            return USAGE;
        }
    };
    match Policy::compile("the converted policy", text.as_bytes()) {
        Ok(policy) => {
            if !policy.warnings().is_empty() {
                console.problem(policy.warnings());
            }
            console.line(text.trim_end());
            for rule in &lost {
                console.problem(format_args!(
                    "{}: NOT CONVERTED, so what it refuses would pass: {rule}",
                    loaded.name
                ));
            }
            if lost.is_empty() { SUCCESS } else { FAILURE }
        }
        Err(findings) => {
            console.problem(format_args!("{}: it cannot be written as a policy:\n{findings}", loaded.name));
            FAILURE
        }
    }
}
