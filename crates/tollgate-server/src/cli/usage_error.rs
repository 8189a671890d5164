//! Errors of the command line in the form that all errors of Tollgate have: the place, the cause, and what would be
//! accepted.

use std::ffi::OsString;

use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use tollgate::policy::source::explained;

/// The problem with the arguments, in one line; `None` for help and version, which are answers.
pub(crate) fn text(error: &clap::Error, arguments: &[OsString], command: &Command) -> Option<String> {
    let usage = UsageError { error, arguments, command };
    let problem = match error.kind() {
        ErrorKind::DisplayHelp
        | ErrorKind::DisplayVersion
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => return None,
        ErrorKind::InvalidSubcommand => usage.unknown_command(),
        ErrorKind::UnknownArgument => usage.unknown_argument(),
        ErrorKind::InvalidValue => usage.wrong_choice(),
        ErrorKind::ValueValidation => usage.wrong_value(),
        ErrorKind::MissingRequiredArgument => {
            let missing = usage.all(ContextKind::InvalidArg);
            let plain = |name: &String| name.replace(['<', '>'], "").trim_end_matches('.').to_owned();
            let missing: Vec<String> = missing.iter().map(plain).collect();
            let verb = if missing.len() == 1 { "is" } else { "are" };
            format!("{} {verb} missing", missing.join(" and "))
        }
        ErrorKind::ArgumentConflict => usage.conflict(),
        ErrorKind::MissingSubcommand => "a command is missing".to_owned(),
        ErrorKind::TooManyValues => {
            format!("{}: {} is too much; accepted: {0} without it", usage.place(), usage.value())
        }
        ErrorKind::WrongNumberOfValues | ErrorKind::TooFewValues => {
            format!("{}: a value is missing", usage.place())
        }
        _ => usage.first_line(),
    };
    // A question ends its sentence.
    let mark = if problem.ends_with('?') { "" } else { ";" };
    Some(format!("{problem}{mark} see `{} --help`", usage.path()))
}

/// Names of commands in other programs, and probable spellings of commands of two words.
const OTHER_NAMES: [(&str, &str); 8] = [
    ("server", "serve"),
    ("start", "serve"),
    ("run", "serve"),
    ("check", "policy check"),
    ("validate", "policy check"),
    ("lint", "policy check"),
    ("diff", "policy diff"),
    ("convert", "policy convert"),
];

/// Flags that another command has for what is meant: the command, the flag of the other one, and its own.
const OTHER_FLAGS: [(&str, &str, &str); 2] =
    [("tollgate tail", "--last", "--since"), ("tollgate policy diff", "--since", "--last")];

struct UsageError<'a> {
    error: &'a clap::Error,
    arguments: &'a [OsString],
    command: &'a Command,
}

impl UsageError<'_> {
    /// The texts of a context.
    fn all(&self, kind: ContextKind) -> Vec<String> {
        match self.error.get(kind) {
            Some(ContextValue::String(text)) => vec![text.clone()],
            Some(ContextValue::Strings(texts)) => texts.clone(),
            Some(ContextValue::StyledStr(text)) => vec![text.to_string()],
            Some(ContextValue::StyledStrs(texts)) => texts.iter().map(ToString::to_string).collect(),
            _ => Vec::new(),
        }
    }

    fn one(&self, kind: ContextKind) -> String {
        self.all(kind).into_iter().next().unwrap_or_default()
    }

    /// The flag, the positional argument or the variable that is wrong.
    fn place(&self) -> String {
        let argument = self.one(ContextKind::InvalidArg);
        let flag = argument.split(' ').next().unwrap_or_default();
        let flag = if flag.starts_with('-') { flag.split('=').next().unwrap_or_default() } else { flag };
        let Some(long) = flag.strip_prefix("--") else {
            return flag.trim_matches(['<', '>', '[', ']', '.']).to_owned();
        };
        let is_typed = self.arguments.iter().any(|given| {
            given
                .to_string_lossy()
                .strip_prefix(flag)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
        });
        match variable(self.command, long).filter(|_| !is_typed) {
            Some(variable) => format!("the variable {variable}"),
            None => flag.to_owned(),
        }
    }

    /// The value, unless it may be a secret.
    fn value(&self) -> String {
        let value = self.one(ContextKind::InvalidValue);
        if self.one(ContextKind::InvalidArg).contains("token") {
            return "this value".to_owned();
        }
        format!("{value:?}")
    }

    fn unknown_command(&self) -> String {
        let name = self.one(ContextKind::InvalidSubcommand);
        let usual =
            OTHER_NAMES.iter().find(|(other, _)| *other == name).map(|(_, meant)| (*meant).to_owned());
        let usual = usual.filter(|_| self.path() == "tollgate");
        match usual.or_else(|| self.all(ContextKind::SuggestedSubcommand).pop()) {
            Some(meant) => format!("unknown command {name:?}; did you mean {meant}?"),
            None => format!("unknown command {name:?}"),
        }
    }

    fn unknown_argument(&self) -> String {
        let name = self.one(ContextKind::InvalidArg);
        let what = if name.starts_with('-') { "unknown flag" } else { "unexpected argument" };
        let path = self.path();
        let usual = OTHER_FLAGS.iter().find(|(command, other, _)| *command == path && *other == name);
        let usual = usual.map(|(_, _, meant)| (*meant).to_owned());
        match usual.or_else(|| self.all(ContextKind::SuggestedArg).into_iter().next()) {
            Some(meant) => {
                let meant = meant.split(' ').next().unwrap_or_default();
                format!("{name}: {what}; did you mean {meant}?")
            }
            None if self.path() == "tollgate serve" && !name.starts_with('-') => {
                format!("{name}: {what}; did you mean --policy {name}?")
            }
            None => format!("{name}: {what}"),
        }
    }

    fn wrong_choice(&self) -> String {
        let accepted = self.all(ContextKind::ValidValue).join(", ");
        if self.one(ContextKind::InvalidValue).is_empty() {
            return explained(&format!("{}: a value is missing", self.place()), &accepted);
        }
        let meant =
            self.all(ContextKind::SuggestedValue).first().map(|meant| format!("; did you mean {meant}?"));
        let problem = format!("{}: {} is unknown{}", self.place(), self.value(), meant.unwrap_or_default());
        explained(&problem, &accepted)
    }

    fn wrong_value(&self) -> String {
        let cause = std::error::Error::source(self.error).map(ToString::to_string).unwrap_or_default();
        let cause = match cause.strip_suffix(" is not in 0..=100") {
            Some(_) => "accepted: 0 to 100".to_owned(),
            None if self.is_negative() && cause == "invalid digit found in string" => {
                "accepted: a whole number that is not negative".to_owned()
            }
            None => plain_cause(&cause),
        };
        let value = self.value();
        // Some causes name the value themselves.
        if cause.starts_with(&value) {
            return format!("{}: {cause}", self.place());
        }
        let dash = if cause.starts_with("accepted") { ";" } else { ":" };
        format!("{}: {value} is not accepted{dash} {cause}", self.place())
    }

    fn is_negative(&self) -> bool {
        self.one(ContextKind::InvalidValue).starts_with('-')
    }

    fn conflict(&self) -> String {
        let (one, other) = (self.place(), self.all(ContextKind::PriorArg));
        let name = |text: &String| text.split(' ').next().unwrap_or_default().to_owned();
        let other: Vec<String> = other.iter().map(name).filter(|other| *other != one).collect();
        match other.as_slice() {
            [] => format!("{one}: may be given once"),
            other => format!("{one}: cannot be given with {}", other.join(" and ")),
        }
    }

    fn first_line(&self) -> String {
        let text = self.error.to_string();
        text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned()
    }

    /// The command as it is typed, such as `tollgate policy check`.
    fn path(&self) -> String {
        let mut path = "tollgate".to_owned();
        let mut command = self.command;
        for word in self.arguments.iter().skip(1) {
            match command.find_subcommand(word) {
                Some(below) => {
                    path.push(' ');
                    path.push_str(below.get_name());
                    command = below;
                }
                None if word.to_string_lossy().starts_with('-') => {}
                None => break,
            }
        }
        path
    }
}

/// The causes of number parsers, in words of people.
fn plain_cause(cause: &str) -> String {
    if let Some((_, range)) = cause.split_once(" is not in ") {
        return format!("accepted: a whole number from {}", range.replace("..=", " to "));
    }
    match cause {
        "invalid digit found in string" | "cannot parse integer from empty string" => {
            "accepted: a whole number".to_owned()
        }
        "number too large to fit in target type" | "number too small to fit in target type" => {
            "the number is out of range".to_owned()
        }
        "value was not a boolean" => "accepted: true or false".to_owned(),
        other => other.to_owned(),
    }
}

/// The variable of a flag, anywhere in the command line.
fn variable(command: &Command, long: &str) -> Option<String> {
    let own = command.get_arguments().find(|argument| argument.get_long() == Some(long));
    let own = own.and_then(clap::Arg::get_env).filter(|name| std::env::var_os(name).is_some());
    own.map(|name| name.to_string_lossy().into_owned())
        .or_else(|| command.get_subcommands().find_map(|command| variable(command, long)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;

    fn message(words: &str) -> String {
        let arguments: Vec<OsString> = words.split(' ').map(OsString::from).collect();
        let error = Cli::parsed(arguments.clone()).unwrap_err();
        text(&error, &arguments, &Cli::arranged()).unwrap()
    }

    /// Every error names its place and what would be accepted, in words that are not those of the parser.
    #[test]
    fn errors_name_place_and_cure() {
        for (words, expected) in [
            ("tollgate serv", "unknown command \"serv\"; did you mean serve? see `tollgate --help`"),
            (
                "tollgate serve --polcy x",
                "--polcy: unknown flag; did you mean --policy? see `tollgate serve --help`",
            ),
            (
                "tollgate decide a=b --cost x",
                "--cost: \"x\" is not accepted; accepted: a whole number; see `tollgate decide --help`",
            ),
            (
                "tollgate tail --denied --last 10m",
                "--last: unknown flag; did you mean --since? see `tollgate tail --help`",
            ),
            (
                "tollgate policy diff new.yaml --live --since 1h",
                "--since: unknown flag; did you mean --last? see `tollgate policy diff --help`",
            ),
            ("tollgate explian", "unknown command \"explian\"; did you mean explain? see `tollgate --help`"),
            (
                "tollgate policy chek",
                "unknown command \"chek\"; did you mean check? see `tollgate policy --help`",
            ),
            ("tollgate server", "unknown command \"server\"; did you mean serve? see `tollgate --help`"),
            (
                "tollgate check policy.yaml",
                "unknown command \"check\"; did you mean policy check? see `tollgate --help`",
            ),
            (
                "tollgate serve policy.yaml",
                "policy.yaml: unexpected argument; did you mean --policy policy.yaml? see `tollgate serve --help`",
            ),
            (
                "tollgate decide a=b --cost -1",
                "--cost: \"-1\" is not accepted; accepted: a whole number that is not negative; see `tollgate decide --help`",
            ),
            (
                "tollgate policy check --json=1 a.yaml",
                "--json: \"1\" is too much; accepted: --json without it; see `tollgate policy check --help`",
            ),
            ("tollgate replay", "--policy FILE and LOG are missing; see `tollgate replay --help`"),
            ("tollgate policy check", "FILE is missing; see `tollgate policy check --help`"),
        ] {
            assert_eq!(message(words), expected);
        }
        let secret = message("tollgate top --token short");
        assert!(!secret.contains("short"), "{secret}");
    }
}
