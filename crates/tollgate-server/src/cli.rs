//! The command line as the user types it. The commands interpret it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use tollgate::request::COST_MAX;
use tollgate::{Ticks, Timestamp};

mod admin;
mod callers;
mod compat;
mod guard;
mod memory;
mod operate;
mod observability;
mod simulate;
mod store;
mod value;

pub use crate::control::admin::GivenToken;
pub use crate::log::LogFormat;
pub use crate::snapshot::SnapshotInterval;
pub use crate::store::NodesChoice;
pub use crate::tls::TlsVersion;
pub use admin::AdminArguments;
pub use callers::{AddCallerArguments, CallersCommand, ListCallersArguments, RemoveCallerArguments};
pub use compat::CompatArguments;
pub use guard::{ReloadArguments, SecurityArguments};
pub use observability::ObservabilityArguments;
pub use operate::{
    BlockArguments, DiffArguments, ExplainArguments, KeyArguments, ListArguments, OperateCommand,
    OverrideArguments, PercentArguments, ReloadNowArguments, ResetArguments, RestoreArguments,
    ScopeArguments, ServerArguments, TailArguments, TopArguments, TrustArguments,
};
pub use simulate::{FleetArguments, SimulateCommand};
pub use store::{EntranceArguments, StoreArguments, StoreCheckArguments, StoreCommand, StoreText};
pub use tollgate_gateway::Target;
pub use tollgate_tower::attributes::address::Network;
pub use value::{GivenAttribute, GivenValue, ListenChoice};

const EXAMPLES: &str = "\
Examples:
  tollgate serve                                   start on memory with the built-in example policy
  tollgate serve --policy policy.yaml              start with your own limits
  tollgate policy check policy.yaml                say what each limit means, and what is wrong
  tollgate decide api_key=k1 --times 3             watch a policy decide, without a server
  tollgate explain api_key=k1                      ask a running server which limits match, and what is left
  tollgate top                                     watch its busiest keys";

/// The whole command line.
#[derive(Debug, Parser)]
#[command(name = "tollgate", version, about = "Rate limiting that is exact, fast and pleasant to run", after_help = EXAMPLES)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Answer rate-limiting questions over HTTP, gRPC and RESP
    Serve(Box<ServeArguments>),
    /// Work with policy files
    Policy {
        /// What to do with them.
        #[command(subcommand)]
        command: PolicyCommand,
    },
    /// Work with the file of known callers
    Callers {
        /// What to do with it.
        #[command(subcommand)]
        command: CallersCommand,
    },
    /// Work with the store that a fleet shares
    Store {
        /// What to do about it.
        #[command(subcommand)]
        command: StoreCommand,
    },
    /// Decide about requests here and now, without a server
    Decide(DecideArguments),
    /// Put a server under load, and measure throughput and latency
    Bench(BenchArguments),
    /// See what limits would do, in virtual time
    Simulate {
        /// What to simulate.
        #[command(subcommand)]
        command: SimulateCommand,
    },
    /// Operate a running server.
    #[command(flatten)]
    Operate(OperateCommand),
}

/// What to do with policy files.
#[derive(Debug, Subcommand)]
pub enum PolicyCommand {
    /// Say what each limit means in a sentence, and report every problem at once
    Check(CheckArguments),
    /// Say what another policy would change, and how many decisions of a trace or of a running server
    Diff(DiffArguments),
    /// Write a configuration of envoyproxy/ratelimit or Limitador as a policy file
    Convert(ConvertArguments),
}

/// The arguments of `serve`.
#[derive(Debug, Args)]
pub struct ServeArguments {
    /// The policy: a file of Tollgate's, envoyproxy/ratelimit's or Limitador's, a directory of such files, or - for
    /// standard input; without one, a built-in example that shows every kind of limit
    #[arg(long, value_name = "FILE|DIR", env = "TOLLGATE_POLICY")]
    pub policy: Option<PathBuf>,
    /// Where to listen for HTTP; port 0 picks a free one
    #[arg(long, value_name = "ADDR", env = "TOLLGATE_HTTP", default_value = "127.0.0.1:8080", value_parser = value::address)]
    pub http: SocketAddr,
    /// Process settings: trusted proxies, and where the attributes of a proxied request come from
    #[arg(long, value_name = "FILE", env = "TOLLGATE_CONFIG")]
    pub config: Option<PathBuf>,
    /// The file of known callers, with which an unknown credential is no identity; takes precedence over `callers` of
    /// the config
    #[arg(long, value_name = "FILE", env = "TOLLGATE_CALLERS")]
    pub callers: Option<PathBuf>,
    /// Proxies whose forwarding headers are trusted: an address or a network. By default this machine, and none for the
    /// gateway
    #[arg(long, value_name = "CIDR", env = "TOLLGATE_TRUSTED_PROXY", value_delimiter = ',')]
    pub trusted_proxy: Vec<Network>,
    /// Where to listen for redis clients, which may send CL.THROTTLE and TG.CHECK; `off` for nowhere
    #[arg(long, value_name = "ADDR", env = "TOLLGATE_RESP", default_value = "127.0.0.1:6380", value_parser = value::listen)]
    pub resp: ListenChoice,
    /// Where to listen for gRPC, as Envoy's rate-limit service; port 0 picks a free one, off does not listen
    #[arg(long, value_name = "ADDR|off", env = "TOLLGATE_GRPC", default_value = "127.0.0.1:8081", value_parser = value::listen)]
    pub grpc: ListenChoice,
    /// An upstream service: Tollgate then runs a gateway in front of it and limits what reaches it; http://, https://
    /// or h2c://
    #[arg(long, value_name = "URL", env = "TOLLGATE_UPSTREAM")]
    pub upstream: Option<Target>,
    /// Where the gateway listens, if there is an upstream or the config has routes
    #[arg(long, value_name = "ADDR", env = "TOLLGATE_GATEWAY", default_value = "127.0.0.1:8000", value_parser = value::address)]
    pub gateway: SocketAddr,
    /// The store of the counters.
    #[command(flatten)]
    pub store: StoreArguments,
    /// The maximum memory for counters; it is taken as counters need it
    #[arg(long, value_name = "SIZE", env = "TOLLGATE_MEMORY", default_value = memory::MEMORY_DEFAULT, value_parser = value::size)]
    pub memory: u64,
    /// How often the counters are written to the state directory; off writes them only when the server stops
    #[arg(long, value_name = "DURATION", env = "TOLLGATE_SNAPSHOT_EVERY", default_value = "10s", value_parser = value::interval)]
    pub snapshot_every: SnapshotInterval,
    /// How long new connections are served after SIGTERM, while /readyz says 503 already; 5s behind a load balancer
    #[arg(long, value_name = "DURATION", env = "TOLLGATE_DRAIN_DELAY", default_value = "0s", value_parser = value::delay)]
    pub drain_delay: Duration,
    /// Settings that a compat configuration's own program reads from its environment.
    #[command(flatten)]
    pub compat: CompatArguments,
    /// Listen on an address that other machines can reach, although clients need no credentials
    #[arg(long, env = "TOLLGATE_INSECURE", value_parser = clap::builder::BoolishValueParser::new())]
    pub insecure: bool,
    /// Which clients may connect, and their credentials.
    #[command(flatten)]
    pub security: SecurityArguments,
    /// How changes of the policy are applied.
    #[command(flatten)]
    pub reload: ReloadArguments,
    /// Who may operate the server.
    #[command(flatten)]
    pub admin: AdminArguments,
    /// Logs and traces.
    #[command(flatten)]
    pub observability: ObservabilityArguments,
}

/// The arguments of `policy check`.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0 when every file compiles (warnings are allowed), 1 when one does not, 2 for wrong usage."
)]
pub struct CheckArguments {
    /// The policy files or directories, of any format that `serve` knows; - reads standard input
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// The config of the server that the policies are for: where credentials and attributes come from, and which
    /// callers are known
    #[arg(long, value_name = "FILE", env = "TOLLGATE_CONFIG")]
    pub config: Option<PathBuf>,
}

/// The arguments of `policy convert`.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0 when it was converted, 1 when the files are wrong or are a policy already, or when a rule that refuses something has no limit here, 2 for wrong usage."
)]
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

const DECIDE_HELP: &str = "\
Attributes are given as name=text or name:=number:
  tollgate decide api_key=k1 --times 5
  tollgate decide tenant=acme path=/v1/chat prompt_tokens:=300 max_tokens:=700
  tollgate decide --policy policy.yaml api_key=k1 --times 20 --every 100ms

Exit status: 0 when every request was allowed, 1 when one was refused, 2 when nothing could be decided.";

/// The arguments of `decide`.
#[derive(Debug, Args)]
#[command(after_help = DECIDE_HELP)]
pub struct DecideArguments {
    /// What is known about the request: name=text, or name:=5 for a number
    #[arg(value_name = "NAME=VALUE", value_parser = value::attribute)]
    pub attributes: Vec<GivenAttribute>,
    /// The policy file, - for standard input; without one, the built-in example
    #[arg(long, value_name = "FILE")]
    pub policy: Option<PathBuf>,
    /// What one request costs; 0 only reads
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
  tollgate bench                                   HTTP, 64 connections, as fast as they are answered
  tollgate bench --rate 10000                      open loop: latency counts from when each request was due
  tollgate bench --wire resp --pipeline 16         sixteen commands under way on each connection
  tollgate bench --sweep                           latency at rising loads, as a table and a picture";

/// The arguments of `bench`.
#[derive(Debug, Args)]
#[command(after_help = BENCH_HELP)]
pub struct BenchArguments {
    /// The request to send
    #[arg(long, value_enum, default_value = "http")]
    pub wire: LoadProtocol,
    /// The server's address; by default the protocol's usual address on this machine
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
