//! `tollgate completions` and `tollgate man`, both made from the command line itself.

use std::fs;
use std::path::Path;

use crate::cli::{Cli, CompletionsArguments, ManArguments};
use crate::console::Console;
use crate::disk::plain_cause;
use crate::{SUCCESS, USAGE};

/// Prints the completions of a shell.
pub(crate) fn completions(arguments: &CompletionsArguments, console: &mut Console) -> u8 {
    let mut text = Vec::new();
    clap_complete::generate(arguments.shell, &mut Cli::arranged(), "tollgate", &mut text);
    console.text(String::from_utf8_lossy(&text));
    SUCCESS
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
