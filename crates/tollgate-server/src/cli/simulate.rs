//! The arguments of `simulate`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use tollgate::Ticks;

use super::value;

/// The system to simulate.
#[derive(Debug, Subcommand)]
pub enum SimulateCommand {
    /// Servers that share a store: the units that they admit together, those that are stranded, and how often they call the store; in
    /// virtual time
    Fleet(FleetArguments),
}

const FLEET_EXAMPLES: &str = "\
Examples:
  tollgate simulate fleet  # six servers, a limit of 1,000 a second
  tollgate simulate fleet --policy policy.yaml --nodes 3 --duration 2s
  tollgate simulate fleet --cuts --json

Exit status: 0 when it was simulated, 2 for wrong usage.";

/// The arguments of `simulate fleet`.
#[derive(Debug, Args)]
#[command(after_long_help = FLEET_EXAMPLES)]
pub struct FleetArguments {
    /// The policy that has the limit; without one, a limit of 1,000 a second
    #[arg(long, value_name = "FILE")]
    pub policy: Option<PathBuf>,
    /// The limit; without a name, the first that can be leased
    #[arg(long, value_name = "NAME")]
    pub limit: Option<String>,
    /// Servers of the fleet
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=200))]
    pub nodes: u32,
    /// Keys; the first gets as many requests as all others together
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub keys: u32,
    /// Requests a second of the whole fleet
    #[arg(long, value_name = "N", default_value_t = 4_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub offered: u64,
    /// How long the simulation lasts, in virtual time
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = value::duration)]
    pub duration: Ticks,
    /// The share of the load, in per cent, that goes to one server; halfway it goes to another
    #[arg(long, value_name = "PERCENT", default_value_t = 50, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub skew: u32,
    /// Servers that are killed, with all that they hold, and start anew
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(0..=1_000))]
    pub losses: u32,
    /// Cut one server after the other off from the store for a while
    #[arg(long)]
    pub cuts: bool,
    /// The seed of the random numbers: the same seed gives the same run
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}
