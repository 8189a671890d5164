//! `tollgate man`: a manual page for each command, made from the command line itself. Sections come from `clap_mangen`,
//! apart from two that it renders too poorly: the synopsis, with the value of each flag, and the examples, line by line.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use clap::{Arg, Command};
use clap_mangen::Man;

use crate::cli::{Cli, ManArguments, help};
use crate::console::Console;
use crate::disk::plain_cause;
use crate::{SUCCESS, USAGE};

/// Writes the manual page of each command.
pub(crate) fn run(arguments: &ManArguments, console: &mut Console) -> u8 {
    match written(&arguments.dir) {
        Ok(pages) => {
            console.line(format_args!("{pages} pages written to {}", arguments.dir.display()));
            SUCCESS
        }
        Err(error) => {
            console.error(format_args!(
                "{}: {}; name a directory that can be written",
                arguments.dir.display(),
                plain_cause(&error)
            ));
            USAGE
        }
    }
}

fn written(directory: &Path) -> io::Result<usize> {
    fs::create_dir_all(directory)?;
    let mut command = Cli::whole().disable_help_subcommand(true);
    command.build();
    pages(&command, directory)
}

/// Writes the pages of a command and of those below it, and returns how many they are.
fn pages(command: &Command, directory: &Path) -> io::Result<usize> {
    let man = Man::new(command.clone());
    page(&man, command, &mut File::create(directory.join(man.get_filename()))?)?;
    command.get_subcommands().try_fold(1, |count, below| Ok(count + pages(below, directory)?))
}

fn page(man: &Man, command: &Command, file: &mut impl Write) -> io::Result<()> {
    man.render_title(file)?;
    man.render_name_section(file)?;
    file.write_all(synopsis(command).as_bytes())?;
    man.render_description_section(file)?;
    man.render_options_section(file)?;
    if command.has_subcommands() {
        man.render_subcommands_section(file)?;
    }
    if command.get_version().is_some() {
        man.render_version_section(file)?;
    }
    let after = command.get_after_long_help().map(|text| help::shown(&text.to_string()));
    file.write_all(after_options(&after.unwrap_or_default()).as_bytes())
}

/// The command with its flags and their values. Lines are broken between flags only.
fn synopsis(command: &Command) -> String {
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name());
    let mut text = format!(".SH SYNOPSIS\n.nh\n.ad l\n\\fB{}\\fR\n", unbroken(name));
    let flags = command.get_arguments().filter(|argument| !argument.is_positional());
    for argument in flags.chain(command.get_positionals()) {
        let shown = match flag(argument) {
            Some(flag) if argument.get_action().takes_values() => format!("{flag}\\ {}", value(argument)),
            Some(flag) => flag,
            None => value(argument),
        };
        match argument.is_required_set() {
            true => text.push_str(&format!("{shown}\n")),
            false => text.push_str(&format!("[{shown}]\n")),
        }
    }
    if command.has_subcommands() {
        text.push_str("\\fICOMMAND\\fR\n");
    }
    text + ".ad b\n.hy\n"
}

/// A flag as it is typed; `None` for an argument without one.
fn flag(argument: &Arg) -> Option<String> {
    let long = argument.get_long().map(|long| format!("\\fB{}\\fR", unbroken(&format!("--{long}"))));
    let short = argument.get_short().map(|short| format!("\\fB\\-{short}\\fR"));
    match (short, long) {
        (Some(short), Some(long)) => Some(format!("{short}|{long}")),
        (short, long) => short.or(long),
    }
}

fn value(argument: &Arg) -> String {
    let names: Vec<&str> =
        argument.get_value_names().unwrap_or_default().iter().map(|name| name.as_str()).collect();
    let many = argument.get_num_args().is_some_and(|count| count.max_values() > 1);
    format!("\\fI{}\\fR{}", unbroken(&names.join(" ")), if many { "..." } else { "" })
}

/// The text after the options: each example on a line of its own, and the exit status in its section.
fn after_options(help: &str) -> String {
    let (mut text, mut is_plain) = (String::new(), true);
    for line in help.lines() {
        if is_plain == line.starts_with(' ') {
            text.push_str(if is_plain { ".nf\n" } else { ".fi\n" });
            is_plain = !is_plain;
        }
        match line.strip_prefix("Exit status: ") {
            Some(status) => text.push_str(&format!(".SH \"EXIT STATUS\"\n{}\n", literal(status))),
            None if line == "Examples:" => text.push_str(".SH EXAMPLES\n"),
            None if line.is_empty() => text.push_str(".PP\n"),
            None => text.push_str(&format!("{}\n", literal(line))),
        }
    }
    text.push_str(if is_plain { "" } else { ".fi\n" });
    text
}

/// Text as roff shows it unchanged: no character of it is a request or an escape, and hyphens can be copied as such.
fn literal(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    // The ASCII quotation mark and accent, instead of the typographic ones.
    format!("\\&{}", text.replace('\'', "\\(aq").replace('`', "\\(ga"))
}

fn unbroken(text: &str) -> String {
    literal(text).replace(' ', "\\ ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: pages showed flags without values, and all examples as one paragraph.
    #[test]
    fn pages_have_values_and_lines() {
        let mut command = Cli::whole();
        command.build();
        let serve = command.find_subcommand("serve").unwrap();
        let mut page_text = Vec::new();
        page(&Man::new(serve.clone()), serve, &mut page_text).unwrap();
        let text = String::from_utf8(page_text).unwrap();
        assert!(text.contains("[\\fB\\&\\-\\-http\\fR\\ \\fI\\&ADDR\\fR]"), "{text}");
        assert!(text.contains("[\\fB\\&\\-\\-insecure\\fR]"), "{text}");
        let examples = text.split_once(".SH EXAMPLES\n.nf\n").unwrap().1;
        assert!(examples.lines().any(|line| line.ends_with("application/json\\(aq \\e")), "{examples}");
        assert!(examples.contains("\n.fi\n.PP\n") && examples.contains(".SH \"EXIT STATUS\""), "{examples}");
        let check = command.find_subcommand("policy").unwrap().find_subcommand("check").unwrap();
        assert!(synopsis(check).contains("\n\\fI\\&FILE\\fR...\n"), "{}", synopsis(check));
    }
}
