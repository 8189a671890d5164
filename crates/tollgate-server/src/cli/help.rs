//! How help is arranged: the commands in groups, the flags in groups, a short help with the few flags that most people
//! need, and a long one with all of them and examples.

use clap::Command;

/// The heading of flags that every command has.
pub(super) const GENERAL: &str = "General";

/// Every command, in the groups of the help.
const GROUPS: [(&str, &[&str]); 5] = [
    ("Serve", &["serve", "init"]),
    ("Files", &["policy", "config", "callers", "store"]),
    ("Try and measure", &["decide", "replay", "suggest", "simulate", "bench"]),
    (
        "Operate a running server",
        &[
            "top", "tail", "limits", "get", "explain", "reset", "block", "unblock", "kill", "shadow",
            "percent", "restore", "reload", "audit", "fleet",
        ],
    ),
    ("Shell", &["completions", "man"]),
];

const EXAMPLES: &str = "\
Examples:
  tollgate serve                     # start on memory, with an example policy
  tollgate init api                  # write a policy and a config to start from
  tollgate policy check policy.yaml  # say what each limit means
  tollgate decide api_key=k1         # watch a policy decide, without a server
  tollgate replay --policy policy.yaml access.log  # what it would have done
  tollgate explain api_key=k1        # which limits match, and what is left
  tollgate top --once                # its busiest keys

Commands for a running server find the one on this machine by themselves; --admin URL names another.
Exit status: 0 for done or yes; 1 for no (a request is denied, a checked file has errors, there was nothing to undo);
2 when the command could not be understood or carried out (wrong flags, a file that cannot be used, no server).";

/// The whole command line, with the arranged help.
pub(super) fn arranged(command: Command) -> Command {
    let template = format!(
        "{{about}}\n\n{{usage-heading}} tollgate COMMAND [ARGUMENTS]\n{}\n{{options}}{{after-help}}",
        listing(&command)
    );
    let command = command
        .help_template(template)
        .after_help("`tollgate COMMAND -h` is short; `tollgate COMMAND --help` has every flag, and examples.")
        .after_long_help(EXAMPLES);
    each(command, "tollgate", &|command, name| {
        // A negative number is a wrong value, and not an unknown flag.
        let command = command.mut_args(|argument| {
            let takes_value = argument.get_action().takes_values() && !argument.is_positional();
            argument.hide_env_values(true).allow_negative_numbers(takes_value)
        });
        let command = match command.get_after_long_help().map(|text| paragraphs(&text.to_string())) {
            Some(text) => command.after_long_help(text),
            None => command,
        };
        let has_more = command.get_after_long_help().is_some() && command.get_after_help().is_none();
        if has_more {
            command.after_help(format!("`{name} --help` has every flag, and examples."))
        } else {
            command
        }
    })
}

/// Stands for a space where help may not be broken: clap breaks lines at spaces only.
const UNBROKEN: char = '\u{a0}';

/// Help as clap rendered it, with the spaces that it could not break.
pub(crate) fn shown(text: &str) -> String {
    text.replace(UNBROKEN, " ")
}

/// Joins the lines of each paragraph, so that they are broken once, at the width of the terminal. Indented lines, which
/// are commands to copy, and headings stay: a terminal that is too narrow wraps them without breaking them.
fn paragraphs(text: &str) -> String {
    let mut joined = String::new();
    let mut is_open = false;
    for line in text.lines() {
        let is_plain = !line.is_empty() && !line.starts_with(' ');
        let goes_on = is_open && is_plain && !line.starts_with("Exit status");
        if !joined.is_empty() {
            joined.push(if goes_on { ' ' } else { '\n' });
        }
        match line.starts_with(' ') {
            true => joined.push_str(&line.replace(' ', &UNBROKEN.to_string())),
            false => joined.push_str(line),
        }
        is_open = is_plain && !line.ends_with(':');
    }
    joined
}

/// The same without the variables, for `-h`.
pub(super) fn short(command: Command) -> Command {
    each(command, "tollgate", &|command, _| command.mut_args(|argument| argument.hide_env(true)))
}

/// The same with every flag also in the short help.
pub(super) fn whole(command: Command) -> Command {
    each(arranged(command), "tollgate", &|command, _| {
        command.mut_args(|argument| argument.hide_short_help(false))
    })
}

/// Applies a change to a command and to all commands below it, each with its full name.
fn each(command: Command, name: &str, change: &dyn Fn(Command, &str) -> Command) -> Command {
    let below: Vec<String> = command.get_subcommands().map(|below| below.get_name().to_owned()).collect();
    let command = below.iter().fold(command, |command, below| {
        let full = format!("{name} {below}");
        command.mut_subcommand(below, |command| each(command, &full, change))
    });
    change(command, name)
}

/// The commands in their groups, each with its sentence.
fn listing(command: &Command) -> String {
    let mut text = String::new();
    for (title, names) in GROUPS {
        text.push_str(&format!("\n{title}:\n"));
        for name in names {
            let about = command.find_subcommand(name).and_then(Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            text.push_str(&format!("  {name:<12} {about}\n"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::CommandFactory;

    /// Every command is in one group of the help, and every group has only commands that exist.
    #[test]
    fn every_command_is_in_a_group() {
        let command = Cli::command();
        let mut known: Vec<&str> = command.get_subcommands().map(Command::get_name).collect();
        let mut grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        known.sort_unstable();
        grouped.sort_unstable();
        assert_eq!(known, grouped);
    }

    fn rendered(path: &[&str], is_long: bool) -> String {
        let mut command = arranged(Cli::command());
        command.build();
        let found =
            path.iter().fold(&mut command, |command, name| command.find_subcommand_mut(name).unwrap());
        let text = if is_long { found.render_long_help() } else { found.render_help() };
        shown(&text.to_string())
    }

    /// The list of commands and all examples fit 80 columns.
    #[test]
    fn the_first_help_fits_a_terminal() {
        let wide: Vec<String> = listing(&Cli::command()).lines().map(str::to_owned).collect();
        let examples = EXAMPLES.lines().filter(|line| line.starts_with(' ')).map(str::to_owned);
        for line in wide.into_iter().chain(examples) {
            assert!(line.chars().count() <= 80, "{line}");
        }
    }

    /// The short help of `serve` fits a screen, the long one has every flag in its group, in this order.
    #[test]
    fn serve_has_a_short_and_a_long_help() {
        let (short, long) = (rendered(&["serve"], false), rendered(&["serve"], true));
        assert!(short.lines().count() <= 50, "{short}");
        let groups =
            ["Listen", "Policy", "Store", "Gateway", "Security", "State", "Telemetry", "Compatibility"];
        let places: Vec<usize> =
            groups.iter().map(|group| long.find(&format!("\n{group}:")).unwrap()).collect();
        assert!(places.is_sorted(), "{places:?}");
        for argument in Cli::command().find_subcommand("serve").unwrap().get_arguments() {
            let flag = argument.get_long().unwrap();
            assert!(long.contains(&format!("--{flag}")), "--{flag} is hidden");
        }
    }

    /// A sentence is broken once, and examples are not broken at all.
    #[test]
    fn paragraphs_are_joined() {
        let text = "Examples:\n  a b\n  c\n\nOne\nsentence.\nExit status: 0 or\n1.";
        assert_eq!(shown(&paragraphs(text)), "Examples:\n  a b\n  c\n\nOne sentence.\nExit status: 0 or 1.");
    }

    /// No flag of any command is hidden from its long help.
    #[test]
    fn nothing_is_hidden() {
        fn walk(command: &Command) {
            for argument in command.get_arguments() {
                assert!(!argument.is_hide_set(), "{} {}", command.get_name(), argument.get_id());
                assert!(!argument.is_hide_long_help_set(), "{} {}", command.get_name(), argument.get_id());
            }
            command.get_subcommands().for_each(walk);
        }
        walk(&arranged(Cli::command()));
    }
}
