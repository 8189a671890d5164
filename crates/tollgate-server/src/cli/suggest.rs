//! The arguments of `suggest`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use tollgate::Ticks;
use tollgate_sim::suggest::KeyShare;

use super::replay::ColumnArguments;
use super::value;

const SUGGEST_EXAMPLES: &str = "\
Examples:
  tollgate suggest --by ip access.log
  tollgate suggest --by ip access.log --html report.html
  tollgate suggest --by ip --untouched 99% --headroom 2 access.log
  tollgate suggest --by ip --anyway --write suggested.yaml access.log

What it prints is a policy: the report stands in its comments.
Exit status: 0 when it suggests a limit, 1 when the log cannot carry one, 2 when it could not be read, or
more than a quarter of its lines are no requests.";

/// The period of the rates that are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SuggestPeriod {
    /// 1/s to 5000/s
    #[value(name = "s")]
    Second,
    /// 1/min to 5000/min
    #[value(name = "min")]
    Minute,
    /// 1/h to 5000/h
    #[value(name = "h")]
    Hour,
    /// 1/day to 5000/day
    #[value(name = "day")]
    Day,
}

impl SuggestPeriod {
    /// Its name in a rate.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            SuggestPeriod::Second => "s",
            SuggestPeriod::Minute => "min",
            SuggestPeriod::Hour => "h",
            SuggestPeriod::Day => "day",
        }
    }

    /// Its length.
    #[must_use]
    pub const fn length(self) -> Ticks {
        Ticks::from_secs(match self {
            SuggestPeriod::Second => 1,
            SuggestPeriod::Minute => 60,
            SuggestPeriod::Hour => 3_600,
            SuggestPeriod::Day => 86_400,
        })
    }
}

/// The arguments of `suggest`.
#[derive(Debug, Args)]
#[command(after_long_help = SUGGEST_EXAMPLES, override_usage = "tollgate suggest [OPTIONS] --by <NAME> <LOG>...")]
pub struct SuggestArguments {
    /// The logs, in any order and of any format that `replay` reads; - reads standard input
    #[arg(required = true, value_name = "LOG")]
    pub logs: Vec<PathBuf>,
    /// The attributes that the limit counts by, separated by commas, such as ip or api_key; without it, an error names
    /// those of the log
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub by: Vec<String>,
    /// The share of keys that the limit would never have denied a request [default: 99.9%, and of fewer than 1000 keys
    /// the finest of 99.8%, 99.5% and 99% that leaves one out; a few keys unlike all others are left out and named]
    #[arg(long, value_name = "PERCENT", value_parser = value::share)]
    pub untouched: Option<KeyShare>,
    /// The factor by which the suggested rate and burst are larger than what was needed, from 1 to 10
    #[arg(long, value_name = "FACTOR", default_value = "1.5", value_parser = value::headroom)]
    pub headroom: u64,
    /// The period of the rates that are tried: the suggested rate returns its burst within one
    #[arg(long, value_enum, value_name = "PERIOD", default_value = "min")]
    pub period: SuggestPeriod,
    /// Suggest also when the log cannot carry it, with a warning in the policy
    #[arg(long)]
    pub anyway: bool,
    /// Write the policy to this file, and only the report to standard output
    #[arg(long, value_name = "FILE")]
    pub write: Option<PathBuf>,
    /// Replay the log through the suggested policy, and write who would notice as one HTML file
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
    /// The config of the server: where credentials and attributes come from, and which proxies are trusted
    #[arg(long, value_name = "FILE", env = "TOLLGATE_CONFIG")]
    pub config: Option<PathBuf>,
    /// The columns of CSV and NDJSON.
    #[command(flatten)]
    pub columns: ColumnArguments,
}
