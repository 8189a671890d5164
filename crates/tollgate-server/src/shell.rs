//! `tollgate completions` and `tollgate man`, both made from the command line itself.

use std::fs;
use std::path::Path;

use clap::builder::PossibleValue;
use clap_complete::Shell;

use crate::cli::{Cli, CompletionsArguments, ManArguments};
use crate::console::Console;
use crate::disk::plain_cause;
use crate::{SUCCESS, USAGE};

/// Prints the completions of a shell.
pub(crate) fn completions(arguments: &CompletionsArguments, console: &mut Console) -> u8 {
    let mut text = Vec::new();
    clap_complete::generate(arguments.shell, &mut Cli::arranged(), "tollgate", &mut text);
    console.text(String::from_utf8_lossy(&text));
    if arguments.shell == Shell::Fish {
        fish_values().into_iter().for_each(|line| console.line(line));
    }
    SUCCESS
}

/// The values of arguments without a flag, such as the kinds of `init`: the generator leaves them out for fish.
fn fish_values() -> Vec<String> {
    let mut lines = Vec::new();
    for command in Cli::arranged().get_subcommands() {
        for argument in command.get_positionals() {
            let values = argument.get_possible_values();
            let names: Vec<&str> = values.iter().map(PossibleValue::get_name).collect();
            if !names.is_empty() {
                let (name, values) = (command.get_name(), names.join(" "));
                let condition = format!("__fish_seen_subcommand_from {name}");
                lines.push(format!("complete -c tollgate -n \"{condition}\" -f -a \"{values}\""));
            }
        }
    }
    lines
}

/// Writes the manual page of each command.
pub(crate) fn man(arguments: &ManArguments, console: &mut Console) -> u8 {
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

fn written(directory: &Path) -> std::io::Result<usize> {
    fs::create_dir_all(directory)?;
    let mut command = Cli::whole().disable_help_subcommand(true);
    command.build();
    clap_mangen::generate_to(command, directory)?;
    Ok(fs::read_dir(directory)?.count())
}
