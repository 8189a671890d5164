//! The arguments about policy files.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use tollgate::Ticks;

use super::operate::ServerArguments;
use super::policy_test::TestArguments;
use super::value;

/// Commands on policy files.
#[derive(Debug, Subcommand)]
pub enum PolicyCommand {
    /// Say what each limit means in a sentence, and report every problem at once
    Check(CheckArguments),
    /// Say what another policy would change, and how many decisions of a trace or of a running server
    Diff(DiffArguments),
    /// Write a configuration of envoyproxy/ratelimit or Limitador as a policy file
    Convert(ConvertArguments),
    /// Run unit tests of a policy: requests in virtual time, and what each of them is to get
    Test(TestArguments),
    /// Print the JSON schema of policy files, for editors
    Schema(SchemaArguments),
}

const SCHEMA_EXAMPLES: &str = "\
Examples:
  tollgate policy schema > policy.schema.json
  tollgate policy schema --test > policy-test.schema.json";

/// The arguments of `policy schema`.
#[derive(Debug, Args)]
#[command(after_long_help = SCHEMA_EXAMPLES)]
pub struct SchemaArguments {
    /// The schema of test files instead
    #[arg(long)]
    pub test: bool,
}

const CHECK_EXAMPLES: &str = "\
Examples:
  tollgate policy check policy.yaml
  tollgate policy check policy.yaml --config config.yaml
  tollgate policy check policy.yaml --json
  tollgate policy check policy.yaml --deny-warnings

Exit status: 0 when every file compiles (warnings are allowed), 1 when one does not, or has warnings with
--deny-warnings, 2 when one cannot be read.";

/// The arguments of `policy check`.
#[derive(Debug, Args)]
#[command(after_long_help = CHECK_EXAMPLES)]
pub struct CheckArguments {
    /// The policy files or directories, of any format that `serve` knows; - reads standard input
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// The config of the server that the policies are for: where credentials and attributes come from, and which
    /// callers are known
    #[arg(long, value_name = "FILE", env = "TOLLGATE_CONFIG")]
    pub config: Option<PathBuf>,
    /// Exit with status 1 where there is a warning
    #[arg(long)]
    pub deny_warnings: bool,
    /// Print the limits and the problems as JSON
    #[arg(long)]
    pub json: bool,
}

const CONVERT_EXAMPLES: &str = "\
Examples:
  tollgate policy convert ratelimit.yaml > converted.yaml
  tollgate policy convert limitador.yaml --domain test

Standard error reports what changes in meaning.
Exit status: 0 when it was converted, 1 when the files are a policy already, or when a rule that refuses something has
no limit here, 2 when they cannot be read or have errors.";

/// The arguments of `policy convert`.
#[derive(Debug, Args)]
#[command(after_long_help = CONVERT_EXAMPLES)]
pub struct ConvertArguments {
    /// The configuration: a file, a directory, or - for standard input
    #[arg(value_name = "FILE|DIR")]
    pub file: PathBuf,
    /// The form to write
    #[arg(long, value_name = "FORM", default_value = "native", value_parser = ["native"])]
    pub to: String,
    /// The domain or namespace to convert, where there is more than one
    #[arg(long, value_name = "NAME")]
    pub domain: Option<String>,
}

const DIFF_EXAMPLES: &str = "\
Examples:
  tollgate policy diff old.yaml new.yaml
  tollgate policy diff old.yaml new.yaml --trace requests.jsonl
  tollgate policy diff new.yaml --live --for 2s
  tollgate policy diff new.yaml --live --last 1h

Two files are compared here; one is compared with the policy of a running server. A trace has a request on each line,
in order of time, with `at` as RFC 3339, or in seconds or milliseconds since 1970:
  {\"at\": \"2030-01-31T12:00:00.250Z\", \"attributes\": {\"api_key\": \"k1\"}, \"cost\": 1}

Exit status: 0 when nothing differs, 1 when something does, 2 when it cannot be compared.";

/// The arguments of `policy diff`.
#[derive(Debug, Args)]
#[command(after_long_help = DIFF_EXAMPLES)]
pub struct DiffArguments {
    /// The old policy and the new one; with --live only the new one
    #[arg(value_name = "FILE", required = true, num_args = 1..=2)]
    pub files: Vec<PathBuf>,
    /// Requests to decide by both
    #[arg(long, value_name = "FILE", conflicts_with = "live")]
    pub trace: Option<PathBuf>,
    /// Compare with the policy of a running server
    #[arg(long)]
    pub live: bool,
    /// With --live, let both decide about the server's requests for this long, up to 10m; nothing is charged for it
    #[arg(long = "for", value_name = "DURATION", requires = "live", value_parser = value::duration)]
    pub lasting: Option<Ticks>,
    /// With --live, let both decide about the requests that all nodes kept for this long, up to 1h; nothing is charged
    #[arg(long, value_name = "DURATION", requires = "live", conflicts_with = "lasting", value_parser = value::duration)]
    pub last: Option<Ticks>,
    /// The server, and the credentials for it.
    #[command(flatten)]
    pub server: ServerArguments,
}
