//! The variables of the environment: those of flags, and the few that have no flag because they hold a secret. A
//! variable with our prefix that no command reads is a typing error, and is reported.

use std::collections::BTreeMap;

use clap::Command;
use tollgate::policy::source::nearest;

/// The prefix of every variable of Tollgate's.
const PREFIX: &str = "TOLLGATE_";
/// Variables that are not those of flags: what is logged, and secrets that no list of processes may show.
const WITHOUT_FLAG: [&str; 4] =
    ["TOLLGATE_LOG", "TOLLGATE_AUTH_TOKEN", "TOLLGATE_STORE_SECRET", "TOLLGATE_STORE_PASSWORD"];

/// Every variable that some command reads, each with the names that its flags would give it.
pub(crate) fn known(command: &Command) -> BTreeMap<String, Vec<String>> {
    let mut names: BTreeMap<String, Vec<String>> =
        WITHOUT_FLAG.iter().map(|&name| (name.to_owned(), Vec::new())).collect();
    collect(command, &mut names);
    names
}

fn collect(command: &Command, names: &mut BTreeMap<String, Vec<String>>) {
    for argument in command.get_arguments() {
        let Some(variable) = argument.get_env() else { continue };
        let flags = argument.get_long_and_visible_aliases().unwrap_or_default();
        let named = flags.iter().map(|flag| format!("{PREFIX}{}", flag.to_uppercase().replace('-', "_")));
        names.entry(variable.to_string_lossy().into_owned()).or_default().extend(named);
    }
    command.get_subcommands().for_each(|command| collect(command, names));
}

/// A warning for each variable with our prefix that no command reads, with the one of the flag by its name, or else the
/// nearest one.
pub(crate) fn warnings(
    given: impl Iterator<Item = String>,
    known: &BTreeMap<String, Vec<String>>,
) -> Vec<String> {
    let unknown = given.filter(|name| name.starts_with(PREFIX) && !known.contains_key(name));
    let warning = |name: String| {
        let rest = name.strip_prefix(PREFIX).unwrap_or_default();
        let of_flag = known.iter().find(|(_, flags)| flags.contains(&name)).map(|(variable, _)| variable);
        let of_flag = of_flag.and_then(|variable| variable.strip_prefix(PREFIX));
        let candidates = known.keys().filter_map(|name| name.strip_prefix(PREFIX));
        match of_flag.or_else(|| nearest(rest, candidates)) {
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
        for (given, meant) in [
            ("TOLLGATE_ADMIN", "TOLLGATE_SERVER"),
            ("TOLLGATE_TOKEN", "TOLLGATE_ADMIN_TOKEN"),
            ("TOLLGATE_TOKEN_FILE", "TOLLGATE_ADMIN_TOKEN_FILE"),
            ("TOLLGATE_ADMIN_HOSTS", "TOLLGATE_ADMIN_HOST"),
        ] {
            let expected = format!("the variable {given} is unknown and not read; did you mean {meant}?");
            assert_eq!(warned(given), [expected]);
        }
        assert!(warned("TOLLGATE_XYZZY")[0].contains("serve --help"));
        for fine in ["TOLLGATE_HTTP", "TOLLGATE_LOG", "TOLLGATE_STORE_PASSWORD", "PATH"] {
            assert_eq!(warned(fine), Vec::<String>::new());
        }
    }
}
