//! `tollgate completions`, made from the command line itself.

use clap::builder::PossibleValue;
use clap_complete::Shell;

use crate::SUCCESS;
use crate::cli::{Cli, CompletionsArguments};
use crate::console::Console;

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
