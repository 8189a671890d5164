//! `tollgate policy convert`: prints a compat configuration as a Tollgate policy. Standard error lists what
//! means something else in the policy. Rules that would be lost are listed there too and make the command fail: an
//! operator who overlooks the notes must not activate a policy that leaves requests unlimited.

use tollgate::Policy;
use tollgate_compat::Conversion;

use crate::cli::ConvertArguments;
use crate::console::Console;
use crate::policy_file;
use crate::text::counted;
use crate::{FAILURE, SUCCESS, USAGE};

/// Converts, and compiles the result before it is used.
pub(crate) fn run(arguments: &ConvertArguments, console: &mut Console) -> u8 {
    let loaded = match policy_file::load(Some(&arguments.file)) {
        Ok(loaded) => loaded,
        Err(error) => {
            console.problem(&error);
            return USAGE;
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
    let converted = match compat.converted(arguments.domain.as_deref()) {
        Ok(converted) => converted,
        Err(why) => {
            console.problem(format_args!("{}: {why}", loaded.name));
            return USAGE;
        }
    };
    match Policy::compile("the converted policy", converted.text.as_bytes()) {
        Ok(policy) => {
            if !policy.warnings().is_empty() {
                console.problem(policy.warnings());
            }
            console.line(converted.text.trim_end());
            report(&loaded.name, &converted, console);
            if converted.lost.is_empty() { SUCCESS } else { FAILURE }
        }
        Err(findings) => {
            console.problem(format_args!("{}: it cannot be written as a policy:\n{findings}", loaded.name));
            FAILURE
        }
    }
}

/// Prints what means something else in the policy, and the rules that it lacks. The policy has both in its comments.
fn report(name: &str, converted: &Conversion, console: &mut Console) {
    let Conversion { limits, changes, lost, made_for, .. } = converted;
    if !changes.is_empty() {
        let (written, changed) = (counted(*limits, "limit"), counted(changes.len(), "change"));
        console.problem(format_args!("{name}: {written} converted, with {changed} of meaning:"));
        for change in changes {
            console.problem(format_args!("  {change}"));
        }
    }
    if let Some(made_for) = made_for {
        console.problem(format_args!("{name}: {made_for}"));
    }
    if !lost.is_empty() {
        console.problem(format_args!(
            "{name}: {} NOT CONVERTED; what these refuse would pass:",
            counted(lost.len(), "rule")
        ));
        for rule in lost {
            console.problem(format_args!("  {rule}"));
        }
    }
}
