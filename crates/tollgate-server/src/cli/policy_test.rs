//! The arguments of `policy test`.

use std::path::PathBuf;

use clap::Args;

use super::replay::ColumnArguments;

const TEST_EXAMPLES: &str = "\
Examples:
  tollgate policy test policy.test.yaml
  tollgate policy test policy.test.yaml --filter burst
  tollgate policy test policy.test.yaml --junit report.xml
  tollgate policy test --record access.log --policy policy.yaml > new.test.yaml

A test file names its policy, and has cases: requests in virtual time, and what each of them is to get:
  policy: policy.yaml
  cases:
    - name: a key gets 200 at once
      requests:
        - {attributes: {api_key: k1}, repeat: 200, expect: allow}
        - {attributes: {api_key: k1}, expect: deny, limit: per-key}

Exit status: 0 when every case passes, 1 when one fails, 2 when a file cannot be tested.";

/// The arguments of `policy test`.
#[derive(Debug, Args)]
#[command(after_long_help = TEST_EXAMPLES)]
pub struct TestArguments {
    /// The test files; with --record, logs of any format that `replay` reads
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Test this policy instead of the ones that the test files name
    #[arg(long, value_name = "FILE")]
    pub policy: Option<PathBuf>,
    /// Write a test from a log: its first requests, and what --policy decides about them
    #[arg(long, requires = "policy", conflicts_with_all = ["filter", "junit", "json"])]
    pub record: bool,
    /// With --record, how many requests of the log to take
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub max_requests: u64,
    /// With --record, the config of the server: where credentials and attributes come from
    #[arg(long, value_name = "FILE", env = "TOLLGATE_CONFIG")]
    pub config: Option<PathBuf>,
    /// Run only the cases whose name has this text
    #[arg(long, value_name = "TEXT")]
    pub filter: Option<String>,
    /// Write the results as JUnit XML, too
    #[arg(long, value_name = "FILE")]
    pub junit: Option<PathBuf>,
    /// Print the results as JSON
    #[arg(long)]
    pub json: bool,
    /// With --record, the columns of CSV and NDJSON.
    #[command(flatten)]
    pub columns: ColumnArguments,
}
