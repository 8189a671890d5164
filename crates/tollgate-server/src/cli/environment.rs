//! The variables of the environment: those of flags, and the few that have no flag because they hold a secret. A
//! variable with our prefix that no command reads is a typing error, and is reported.

use std::collections::BTreeSet;

use clap::Command;
use tollgate::policy::source::nearest;

/// The prefix of every variable of Tollgate's.
const PREFIX: &str = "TOLLGATE_";
/// Variables that are not those of flags: what is logged, and secrets that no list of processes may show.
const WITHOUT_FLAG: [&str; 4] =
    ["TOLLGATE_LOG", "TOLLGATE_AUTH_TOKEN", "TOLLGATE_STORE_SECRET", "TOLLGATE_STORE_PASSWORD"];

/// Every variable that some command reads.
pub(crate) fn known(command: &Command) -> BTreeSet<String> {
    let mut names: BTreeSet<String> = WITHOUT_FLAG.iter().map(|&name| name.to_owned()).collect();
    collect(command, &mut names);
    names
}

fn collect(command: &Command, names: &mut BTreeSet<String>) {
    let variables = command.get_arguments().filter_map(clap::Arg::get_env);
    names.extend(variables.map(|name| name.to_string_lossy().into_owned()));
    command.get_subcommands().for_each(|command| collect(command, names));
}

/// A warning for each variable with our prefix that no command reads, with the nearest one.
pub(crate) fn warnings(given: impl Iterator<Item = String>, known: &BTreeSet<String>) -> Vec<String> {
    let unknown = given.filter(|name| name.starts_with(PREFIX) && !known.contains(name));
    let warning = |name: String| {
        let rest = name.strip_prefix(PREFIX).unwrap_or_default();
        let candidates = known.iter().filter_map(|name| name.strip_prefix(PREFIX));
        match nearest(rest, candidates) {
            Some(meant) => {
                format!("the variable {name} is unknown and not read; did you mean {PREFIX}{meant}?")
            }
            None => {
                format!("the variable {name} is unknown and not read; `tollgate serve --help` lists them")
            }
        }
    };
    unknown.map(warning).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;

    /// A variable with our prefix that no command reads is named, with the one that was meant.
    #[test]
    fn typing_errors_in_variables_are_found() {
        let known = known(&Cli::arranged());
        let warned = |name: &str| warnings([name.to_owned()].into_iter(), &known);
        assert_eq!(
            warned("TOLLGATE_POLCY"),
            ["the variable TOLLGATE_POLCY is unknown and not read; did you mean TOLLGATE_POLICY?"]
        );
        assert!(warned("TOLLGATE_XYZZY")[0].contains("serve --help"));
        for fine in ["TOLLGATE_HTTP", "TOLLGATE_LOG", "TOLLGATE_STORE_PASSWORD", "PATH"] {
            assert_eq!(warned(fine), Vec::<String>::new());
        }
    }
}
