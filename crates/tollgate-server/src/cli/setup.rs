//! The arguments of commands that set Tollgate up: its first files, completions and manual pages.

use std::path::PathBuf;

use clap::builder::TypedValueParser;
use clap::{Args, Subcommand, ValueEnum};
use clap_complete::Shell;

/// The use of the first files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum InitKind {
    /// A public API: limits by key, by tenant and plan, and for the whole platform
    Api,
    /// A login page: guesses by address and by account
    Login,
    /// Language models: tokens by tenant, and requests in flight
    Llm,
    /// A gateway in front of a service
    Gateway,
}

const INIT_EXAMPLES: &str = "\
Examples:
  tollgate init api            # a policy, its tests and a config
  tollgate init llm --dir llm  # the same in the directory llm
  tollgate serve --policy policy.yaml --config config.yaml

Exit status: 0 when all files were written, 1 when one of them is there already, 2 when one cannot be written.";

/// The arguments of `init`.
#[derive(Debug, Args)]
#[command(after_long_help = INIT_EXAMPLES)]
pub struct InitArguments {
    /// The kind of setup
    #[arg(value_enum, value_name = "KIND", default_value = "api")]
    pub kind: InitKind,
    /// Where to write the files; the directory is created if it is missing
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub dir: PathBuf,
}

/// Commands on config files.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Report every problem of config files at once
    Check(ConfigCheckArguments),
    /// Print the JSON schema of config files, for editors
    Schema,
}

const CONFIG_CHECK_EXAMPLES: &str = "\
Examples:
  tollgate config check config.yaml
  tollgate config check config.yaml --policy policy.yaml  # as served together
  tollgate config check config.yaml --json
  tollgate config check config.yaml --policy policy.yaml --deny-warnings

Exit status: 0 when every file is accepted (warnings are allowed), 1 when one is not, or has warnings with
--deny-warnings, 2 when one cannot be read.";

/// The arguments of `config check`.
#[derive(Debug, Args)]
#[command(after_long_help = CONFIG_CHECK_EXAMPLES)]
pub struct ConfigCheckArguments {
    /// The config files
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// The policy that is served with them: also report what a server would warn of
    #[arg(long, value_name = "FILE|DIR", env = "TOLLGATE_POLICY")]
    pub policy: Option<PathBuf>,
    /// Exit with status 1 where there is a warning
    #[arg(long)]
    pub deny_warnings: bool,
    /// Print the problems as JSON
    #[arg(long)]
    pub json: bool,
}

const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  tollgate completions bash > tollgate.bash  # then: source tollgate.bash
  tollgate completions zsh > _tollgate       # in a directory of $fpath
  tollgate completions fish > tollgate.fish  # in ~/.config/fish/completions";

/// The arguments of `completions`.
#[derive(Debug, Args)]
#[command(after_long_help = COMPLETIONS_EXAMPLES)]
pub struct CompletionsArguments {
    /// The shell
    #[arg(value_name = "SHELL", value_parser = clap::builder::PossibleValuesParser::new(["bash", "zsh", "fish"]).try_map(|name| name.parse::<Shell>()))]
    pub shell: Shell,
}

const MAN_EXAMPLES: &str = "\
Examples:
  tollgate man man  # writes man/tollgate.1 and others
  man ./man/tollgate.1";

/// The arguments of `man`.
#[derive(Debug, Args)]
#[command(after_long_help = MAN_EXAMPLES)]
pub struct ManArguments {
    /// Where to write the pages; the directory is created if it is missing
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
}
