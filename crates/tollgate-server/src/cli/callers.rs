//! Arguments about the callers file.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::value::{self, GivenAttribute};

/// Commands on the callers file.
#[derive(Debug, Subcommand)]
pub enum CallersCommand {
    /// Add a credential, as its SHA-256, and the attributes of its caller
    Add(AddCallerArguments),
    /// List the digests of known credentials, and the attributes of their callers
    List(ListCallersArguments),
    /// Remove a credential
    Remove(RemoveCallerArguments),
}

const ADD_HELP: &str = "\
Examples:
  tollgate callers add k1 tenant=acme plan=pro
  printf %s k2 | tollgate callers add - tenant=acme plan=pro  # in no history

Exit status: 0 when it was added, 1 when it is known already, 2 when the file cannot be used.";

/// The arguments of `callers add`.
#[derive(Debug, Args)]
#[command(after_long_help = ADD_HELP)]
pub struct AddCallerArguments {
    /// The credential, its digest as sha256:..., or - for the first line of standard input
    #[arg(value_name = "CREDENTIAL")]
    pub credential: Option<String>,
    /// Attributes of the caller: name=text
    #[arg(value_name = "NAME=VALUE", value_parser = value::attribute)]
    pub attributes: Vec<GivenAttribute>,
    /// The callers file; it is created if it is missing
    #[arg(long, value_name = "FILE", env = "TOLLGATE_CALLERS", default_value = "callers.yaml")]
    pub file: PathBuf,
}

const LIST_HELP: &str = "\
Examples:
  tollgate callers list
  tollgate callers list --json";

const REMOVE_HELP: &str = "\
Examples:
  tollgate callers remove k1

Exit status: 0 when it was removed, 1 when it was not there, 2 when the file cannot be used.";

/// The arguments of `callers list`.
#[derive(Debug, Args)]
#[command(after_long_help = LIST_HELP)]
pub struct ListCallersArguments {
    /// The callers file
    #[arg(long, value_name = "FILE", env = "TOLLGATE_CALLERS", default_value = "callers.yaml")]
    pub file: PathBuf,
    /// Print the callers as JSON
    #[arg(long)]
    pub json: bool,
}

/// The arguments of `callers remove`.
#[derive(Debug, Args)]
#[command(after_long_help = REMOVE_HELP)]
pub struct RemoveCallerArguments {
    /// The credential, its digest as sha256:..., or - for the first line of standard input
    #[arg(value_name = "CREDENTIAL")]
    pub credential: Option<String>,
    /// The callers file
    #[arg(long, value_name = "FILE", env = "TOLLGATE_CALLERS", default_value = "callers.yaml")]
    pub file: PathBuf,
}
