//! The program `tollgate`: its command line, its commands, and the protocols that ask for decisions. The core crate has
//! limits, policies and headers. Nothing here computes a quota.
//!
//! A program that embeds the server calls [`run`] with the words of a command line:
//!
//! ```
//! use std::ffi::OsString;
//!
//! let words = ["tollgate", "decide", "api_key=k1"].map(OsString::from);
//! let _status = tollgate_server::run(words);
//! ```
//!
//! [`cli`] describes the command line. The other modules are private; a request passes them in this order:
//!
//! | modules | what they do |
//! |---|---|
//! | `config`, `policy_file`, `callers`, `tls`, `store` | read the files, and open the store |
//! | `listen` | accepts connections |
//! | `http`, `grpc` with `rls` and `rlqs`, `resp`, `gateway` | read requests, one module for each protocol |
//! | `service` | asks the engine of the core crate |
//! | `telemetry`, `log` | count, trace and log the decision |
//! | `reload`, `snapshot`, `operator_state`, `control` | reload policies, keep counters, and hold the overrides and blocks of operators |

// A module uses only those above it.

// Leaves, which everything else uses.
mod protocol;
mod failure;
mod disk;
mod file_watch;
mod text;
mod time_text;
mod announcement;
mod process;
mod log;
mod lazy_timeout;
mod console;

// Input and output, independent of any connection.
mod auth;
mod identity;
mod problem;
mod request_body;
mod json_error;
mod request_json;
mod decision_json;
mod envoy_api;
mod rls;

// The server's files, and its store.
mod document;
mod callers;
mod tls;
mod policy_spelling;
mod policy_warnings;
mod store;

// Decisions.
mod telemetry;
mod policy_file;
mod service;

// Protocols that only ask for decisions.
mod listen;
mod resp;
mod rlqs;
mod grpc;
mod gateway;
mod outbound;

// The control plane, and HTTP, which serves it and decisions.
mod store_watch;
mod snapshot;
mod operator_state;
mod reload;
mod readiness;
mod fleet;
mod control;
mod http;

// The command line, the config, and the commands.
mod config;
pub mod cli;
mod schema;
mod init;
mod shell;
mod manual;
mod config_check;
mod policy_check;
mod policy_convert;
mod callers_edit;
mod operate;
mod store_check;
mod decide;
mod simulate;
mod bench;
mod replay;
mod suggest;
mod policy_diff;
mod policy_test;
mod serve;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;

use std::ffi::OsString;
use std::process::ExitCode;

// Leaves that the gateway needs too.
use tollgate_gateway::{log_throttle, random, shutdown};

use cli::{
    Cli, ColorChoice, Command, ConfigCommand, PolicyCommand, StoreCommand, environment, help, usage_error,
};
use console::Console;

// The exit statuses. `docs/cli.md` says for each command when it ends with which, and a test holds it to that.

/// The command did its work, or its answer is yes.
const SUCCESS: u8 = 0;
/// The answer is no: a request is denied, a file that is checked has errors, a server refuses or cannot start.
const FAILURE: u8 = 1;
/// The command could not be understood, or cannot work with its input: wrong flags, a file that cannot be read or, unless
/// the command checks it, has errors.
const USAGE: u8 = 2;

/// Runs the command that the arguments name, and returns its exit status.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let cli = match Cli::parsed(arguments.clone()) {
        Ok(cli) => cli,
        Err(error) => {
            let mut console = Console::standard(ColorChoice::Auto);
            match usage_error::text(&error, &arguments, &Cli::arranged()) {
                Some(problem) => console.error(problem),
                // Help and version are answers: clap knows their stream and their status.
                None if error.use_stderr() => console.problem(help::shown(&error.to_string()).trim_end()),
                None => {
                    let text = help::shown(&console.styled(&error.render()));
                    console.text(text);
                }
            }
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(USAGE));
        }
    };
    let mut console = Console::standard(cli.color);
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    for warning in environment::warnings(names, &environment::known(&Cli::arranged())) {
        console.warning(warning);
    }
    let status = carried_out(cli.command, &mut console).unwrap_or_else(|problem| {
        console.error(problem);
        USAGE
    });
    ExitCode::from(status)
}

/// Carries out a command, and returns its exit status, or why it could not be carried out.
fn carried_out(command: Command, console: &mut Console) -> Result<u8, String> {
    Ok(match command {
        Command::Serve(arguments) => serve::run(&arguments, console),
        Command::Init(arguments) => init::run(&arguments, console),
        Command::Policy { command: PolicyCommand::Check(arguments) } => {
            policy_check::run(&arguments, console)?
        }
        Command::Policy { command: PolicyCommand::Diff(arguments) } => policy_diff::run(&arguments, console)?,
        Command::Policy { command: PolicyCommand::Convert(arguments) } => {
            policy_convert::run(&arguments, console)
        }
        Command::Policy { command: PolicyCommand::Test(arguments) } => policy_test::run(&arguments, console)?,
        Command::Policy { command: PolicyCommand::Schema(arguments) } => {
            schema::print(if arguments.test { schema::TEST } else { schema::POLICY }, console)
        }
        Command::Config { command: ConfigCommand::Check(arguments) } => {
            config_check::run(&arguments, console)
        }
        Command::Config { command: ConfigCommand::Schema } => schema::print(schema::CONFIG, console),
        Command::Callers { command } => callers_edit::run(&command, console)?,
        Command::Store { command: StoreCommand::Check(arguments) } => store_check::run(&arguments, console)?,
        Command::Decide(arguments) => decide::run(&arguments, console)?,
        Command::Replay(arguments) => replay::run(&arguments, console),
        Command::Suggest(arguments) => suggest::run(&arguments, console),
        Command::Simulate { command } => simulate::run(&command, console)?,
        Command::Bench(arguments) => bench::run(&arguments, console)?,
        Command::Operate(command) => operate::run(&command, console)?,
        Command::Completions(arguments) => shell::completions(&arguments, console),
        Command::Man(arguments) => manual::run(&arguments, console),
    })
}
