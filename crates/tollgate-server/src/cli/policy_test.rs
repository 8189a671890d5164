//! The arguments of `policy test`.

use std::path::PathBuf;

use clap::Args;

const TEST_EXAMPLES: &str = "\
Examples:
  tollgate policy test policy.test.yaml
  tollgate policy test policy.test.yaml --filter burst
  tollgate policy test policy.test.yaml --junit report.xml

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
    /// The test files
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Test this policy instead of the ones that the test files name
    #[arg(long, value_name = "FILE")]
    pub policy: Option<PathBuf>,
    /// Run only the cases whose name has this text
    #[arg(long, value_name = "TEXT")]
    pub filter: Option<String>,
    /// Write the results as JUnit XML, too
    #[arg(long, value_name = "FILE")]
    pub junit: Option<PathBuf>,
    /// Print the results as JSON
    #[arg(long)]
    pub json: bool,
}
