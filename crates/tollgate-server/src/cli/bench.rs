//! The arguments of `bench`.

use std::net::SocketAddr;

use clap::Args;
use tollgate::Ticks;

use super::value;

/// The request of a load generator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LoadProtocol {
    /// POST /v1/check
    Http,
    /// POST /v1/check/batch
    Batch,
    /// Envoy's rate-limit service
    Grpc,
    /// TG.CHECK over RESP
    Resp,
    /// CL.THROTTLE over RESP
    Throttle,
}

const BENCH_HELP: &str = "\
Examples:
  tollgate bench                            # HTTP, 64 connections
  tollgate bench --rate 10000               # open loop: sends on time
  tollgate bench --wire resp --pipeline 16  # 16 in flight on each
  tollgate bench --sweep                    # latency at rising loads

Exit status: 0 when it was measured, 2 when the server cannot be reached, is another machine, or is one of several here.";

/// The arguments of `bench`.
#[derive(Debug, Args)]
#[command(after_long_help = BENCH_HELP)]
pub struct BenchArguments {
    /// The request to send
    #[arg(long, value_enum, default_value = "http")]
    pub wire: LoadProtocol,
    /// The server's address; by default that of the server on this machine, if only one runs
    #[arg(long, value_name = "ADDR", value_parser = value::address)]
    pub to: Option<SocketAddr>,
    /// Requests a second, due at fixed instants (open loop); without it each connection sends as fast as it is answered
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub rate: Option<u64>,
    /// How many connections send requests
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = value::connections)]
    pub connections: usize,
    /// How many requests each connection has in flight in a closed loop
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = value::pipeline)]
    pub pipeline: usize,
    /// How many checks are in a batch
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = value::batch)]
    pub batch: usize,
    /// How many different keys are used
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=9_999_999))]
    pub keys: u64,
    /// The attribute that holds the key
    #[arg(long, value_name = "NAME", default_value = "api_key")]
    pub attribute: String,
    /// The domain of Envoy's request
    #[arg(long, value_name = "NAME", default_value = "bench")]
    pub domain: String,
    /// How long to measure
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = value::duration)]
    pub duration: Ticks,
    /// How long to send before the measurement
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = value::duration)]
    pub warmup: Ticks,
    /// After the first run, measure latency at rising loads
    #[arg(long)]
    pub sweep: bool,
    /// Print each run as a line of JSON
    #[arg(long)]
    pub json: bool,
    /// Allow another machine as the target
    #[arg(long)]
    pub remote: bool,
}
