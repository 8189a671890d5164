//! The arguments of `replay`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

const REPLAY_EXAMPLES: &str = "\
Examples:
  tollgate replay --policy policy.yaml access.log
  tollgate replay --policy policy.yaml access.log \\
    --html report.html --json report.json
  tollgate replay --policy policy.yaml --against new.yaml access.log
  tollgate replay --policy policy.yaml - < access.log
  tollgate replay --policy policy.yaml access.log --json

Formats are found by looking: nginx and Apache common and combined, Envoy, Caddy and Traefik JSON, AWS ALB, HAProxy,
CSV, NDJSON, HAR, and `tollgate tail --json`; plain, gzip or zstd. Nothing is sent anywhere.
Exit status: 0 when the log was replayed, 2 when it could not be, or more than a quarter of its lines are no requests.";

/// The reaction of clients to a denial.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ClientChoice {
    /// A denied request does not come back
    #[default]
    Gone,
    /// It comes back once, at its Retry-After
    Retry,
    /// Its client waits as Retry-After says, until the request passes
    Obey,
}

/// How columns of CSV and fields of NDJSON are named.
#[derive(Debug, Default, Args)]
pub struct ColumnArguments {
    /// The column of the time, in CSV and NDJSON
    #[arg(long, value_name = "COLUMN", help_heading = "Columns")]
    pub time: Option<String>,
    /// A column that becomes an attribute: NAME, or NAME=COLUMN for another name; may be repeated
    #[arg(long = "key", value_name = "NAME[=COLUMN]", help_heading = "Columns")]
    pub keys: Vec<String>,
    /// The column of the cost
    #[arg(long, value_name = "COLUMN", help_heading = "Columns")]
    pub cost: Option<String>,
    /// The column of the HTTP status
    #[arg(long, value_name = "COLUMN", help_heading = "Columns")]
    pub status: Option<String>,
}

/// The arguments of `replay`.
#[derive(Debug, Args)]
#[command(after_long_help = REPLAY_EXAMPLES)]
pub struct ReplayArguments {
    /// The logs, in any order; - reads standard input
    #[arg(required = true, value_name = "LOG")]
    pub logs: Vec<PathBuf>,
    /// The policy that decides
    #[arg(long, value_name = "FILE", env = "TOLLGATE_POLICY", required = true)]
    pub policy: PathBuf,
    /// Another policy: who would be newly denied, and who freed; with --clients gone
    ///
    /// A request that comes back under one policy has no partner under the other.
    #[arg(long, value_name = "FILE")]
    pub against: Option<PathBuf>,
    /// The config of the server: where credentials and attributes come from, and which proxies are trusted
    #[arg(long, value_name = "FILE", env = "TOLLGATE_CONFIG")]
    pub config: Option<PathBuf>,
    /// The reaction of clients to a denial
    #[arg(long, value_enum, value_name = "HOW", default_value = "gone")]
    pub clients: ClientChoice,
    /// Leave out a limit, such as one whose attribute the log does not have; may be repeated
    #[arg(long = "without", value_name = "LIMIT")]
    pub without: Vec<String>,
    /// Write the report as one HTML file, without scripts
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Write the report as JSON; without FILE, or with -, to standard output instead of the text
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    pub json: Option<PathBuf>,
    /// Show keys as hashes that cannot be reversed, for a report that you share
    #[arg(long)]
    pub hash_keys: bool,
    /// The columns of CSV and NDJSON.
    #[command(flatten)]
    pub columns: ColumnArguments,
}
