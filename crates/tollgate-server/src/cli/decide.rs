//! The arguments of `decide`.

use std::path::PathBuf;

use clap::Args;
use tollgate::request::COST_MAX;
use tollgate::{Ticks, Timestamp};

use super::value::{self, GivenAttribute};

const DECIDE_EXAMPLES: &str = "\
Examples:
  tollgate decide api_key=k1 --times 5
  tollgate decide tenant=acme path=/v1/chat prompt_tokens:=300 max_tokens:=700
  tollgate decide --policy policy.yaml api_key=k1 --times 20 --every 100ms

Attributes are given as name=text or name:=number.
Exit status: 0 when every request was allowed, 1 when one was refused, 2 when nothing could be decided.";

/// The arguments of `decide`.
#[derive(Debug, Args)]
#[command(after_long_help = DECIDE_EXAMPLES)]
pub struct DecideArguments {
    /// Attributes of the request: name=text, or name:=5 for a number
    #[arg(value_name = "NAME=VALUE", value_parser = value::attribute)]
    pub attributes: Vec<GivenAttribute>,
    /// The policy file, - for standard input; without one, the built-in example
    #[arg(long, value_name = "FILE", env = "TOLLGATE_POLICY")]
    pub policy: Option<PathBuf>,
    /// The cost of one request; 0 only reads
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(0..=COST_MAX))]
    pub cost: u64,
    /// How many requests to decide
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=value::TIMES_MAX))]
    pub times: u64,
    /// When the first request comes, such as 2030-01-01T00:00:00Z; by default now
    #[arg(long, value_name = "TIME", value_parser = value::instant)]
    pub at: Option<Timestamp>,
    /// Virtual time between requests, such as 100ms; the command does not wait for it
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = value::duration)]
    pub every: Ticks,
    /// Print each decision as a line of JSON, as the server would answer it
    #[arg(long)]
    pub json: bool,
}
