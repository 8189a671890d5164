//! The program `tollgate`: its command line, its commands, and the protocols that ask for decisions. The core crate has
//! limits, policies and headers. Nothing here computes a quota.

// A module uses only those above it.

// Leaves, which everything else uses.
mod protocol;
mod failure;
mod file_watch;
mod text;
mod time_text;
mod disk;
mod process;
mod log;
mod lazy_timeout;
mod console;

// Input and output, independent of any connection.
mod auth;
mod identity;
mod problem;
mod request_body;
mod distinct_json;
mod request_json;
mod decision_json;
mod envoy_api;
mod rls;

// The server's files, and its store.
mod document;
mod callers;
mod tls;
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

// The control plane, and HTTP, which serves it and decisions.
mod store_watch;
mod snapshot;
mod operator_state;
mod reload;
mod readiness;
mod control;
mod http;

// The command line, the config, and the commands.
mod config;
pub mod cli;
mod policy_check;
mod policy_convert;
mod callers_edit;
mod store_check;
mod decide;
mod simulate;
mod bench;
mod operate;
mod policy_diff;
mod serve;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;

// Leaves that the gateway needs too.
use tollgate_gateway::{log_throttle, random, shutdown};

use cli::{Cli, Command, PolicyCommand, StoreCommand};
use console::Console;

/// The command succeeded.
const SUCCESS: u8 = 0;
/// The command worked, and its answer is no: a policy with errors, a refused request, a server that could not start.
const FAILURE: u8 = 1;
/// The command could not be understood or carried out.
const USAGE: u8 = 2;

/// Runs the command that the arguments name, and returns its exit status.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are answers as well: clap knows their stream and their status.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(USAGE));
        }
    };
    let mut console = Console::standard();
    let status = match cli.command {
        Command::Serve(arguments) => serve::run(&arguments, &mut console),
        Command::Policy { command: PolicyCommand::Check(arguments) } => {
            policy_check::run(&arguments, &mut console)
        }
        Command::Policy { command: PolicyCommand::Diff(arguments) } => {
            policy_diff::run(&arguments, &mut console)
        }
        Command::Policy { command: PolicyCommand::Convert(arguments) } => {
            policy_convert::run(&arguments, &mut console)
        }
        Command::Callers { command } => callers_edit::run(&command, &mut console),
        Command::Store { command: StoreCommand::Check(arguments) } => {
            store_check::run(&arguments, &mut console)
        }
        Command::Decide(arguments) => decide::run(&arguments, &mut console),
        Command::Simulate { command } => simulate::run(&command, &mut console),
        Command::Bench(arguments) => bench::run(&arguments, &mut console),
        Command::Operate(command) => operate::run(&command, &mut console),
    };
    ExitCode::from(status)
}
