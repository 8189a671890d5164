//! The arguments of `serve`, in the groups that its help shows. `-h` shows the few that most servers need.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::builder::BoolishValueParser;

use super::admin::AdminArguments;
use super::compat::CompatArguments;
use super::guard::{ReloadArguments, SecurityArguments};
use super::memory;
use super::observability::ObservabilityArguments;
use super::store::StoreArguments;
use super::value::{self, ListenChoice};
use crate::snapshot::SnapshotInterval;
use tollgate_gateway::Target;
use tollgate_tower::attributes::address::Network;

const SERVE_EXAMPLES: &str = "\
Examples:
  tollgate serve                       # on memory, with an example policy
  tollgate serve --policy policy.yaml  # your own limits; the file is watched
  tollgate serve --policy policy.yaml --store redis://127.0.0.1:6379
  tollgate serve --policy policy.yaml --upstream http://127.0.0.1:3000
  tollgate serve --policy policy.yaml --state-dir state
  curl -s 127.0.0.1:8080/v1/check -H 'Content-Type: application/json' \\
    -d '{\"attributes\":{\"api_key\":\"k1\"}}'  # ask it

A flag takes precedence over its variable, and both over the config file.
Exit status: 0 after a stop signal, 1 when the server cannot start or fails, such as when another program has its address,
2 for wrong flags, and for a file that cannot be read or has errors.";

/// The arguments of `serve`.
#[derive(Debug, Args)]
#[command(
    after_help = "`tollgate serve --help` shows every flag, its variable and examples.",
    after_long_help = SERVE_EXAMPLES
)]
pub struct ServeArguments {
    /// Where to listen for HTTP
    ///
    /// Port 0 picks a free one.
    #[arg(help_heading = "Listen", long, value_name = "ADDR", env = "TOLLGATE_HTTP", default_value = "127.0.0.1:8080", value_parser = value::address)]
    pub http: SocketAddr,
    /// Where to listen for gRPC, as Envoy's rate-limit service; `off` for nowhere
    #[arg(help_heading = "Listen", long, value_name = "ADDR|off", env = "TOLLGATE_GRPC", default_value = "127.0.0.1:8081", value_parser = value::listen)]
    pub grpc: ListenChoice,
    /// Where to listen for redis clients, which may send CL.THROTTLE and TG.CHECK; `off` for nowhere
    #[arg(help_heading = "Listen", long, value_name = "ADDR|off", env = "TOLLGATE_RESP", default_value = "127.0.0.1:6380", value_parser = value::listen)]
    pub resp: ListenChoice,
    /// How long new connections are served after SIGTERM, while /readyz says 503 already; 5s behind a load balancer
    #[arg(help_heading = "Listen", long, value_name = "DURATION", env = "TOLLGATE_DRAIN_DELAY", default_value = "0s", value_parser = value::delay, hide_short_help = true)]
    pub drain_delay: Duration,
    /// The policy: a file or a directory, or - for standard input; by default a built-in example
    ///
    /// A file of Tollgate's, envoyproxy/ratelimit's or Limitador's, or a directory of such files. The built-in example
    /// shows every kind of limit.
    #[arg(help_heading = "Policy", long, value_name = "FILE|DIR", env = "TOLLGATE_POLICY")]
    pub policy: Option<PathBuf>,
    /// Process settings: trusted proxies, credentials, routes, and where attributes come from
    #[arg(help_heading = "Policy", long, value_name = "FILE", env = "TOLLGATE_CONFIG")]
    pub config: Option<PathBuf>,
    /// The file of known callers, with which an unknown credential is no identity; takes precedence over `callers` of
    /// the config
    #[arg(
        help_heading = "Policy",
        long,
        value_name = "FILE",
        env = "TOLLGATE_CALLERS",
        hide_short_help = true
    )]
    pub callers: Option<PathBuf>,
    /// The store of the counters.
    #[command(flatten)]
    pub store: StoreArguments,
    /// The maximum memory for counters; it is taken as counters need it
    #[arg(help_heading = "Store", long, value_name = "SIZE", env = "TOLLGATE_MEMORY", default_value = memory::MEMORY_DEFAULT, value_parser = value::size, hide_short_help = true)]
    pub memory: u64,
    /// An upstream service: a gateway in front of it limits what reaches it; http://, https:// or h2c://
    #[arg(help_heading = "Gateway", long, value_name = "URL", env = "TOLLGATE_UPSTREAM")]
    pub upstream: Option<Target>,
    /// Where the gateway listens, with --upstream or routes in the config; by default 127.0.0.1:8000
    #[arg(help_heading = "Gateway", long, value_name = "ADDR", env = "TOLLGATE_GATEWAY", value_parser = value::address)]
    pub gateway: Option<SocketAddr>,
    /// Where the outbound proxy listens, if the config has `outbound`; takes precedence over its `listen`
    ///
    /// Programs in any language send their calls to other people's APIs through it, and it keeps them within the limits
    /// of those APIs.
    #[arg(help_heading = "Gateway", long, value_name = "ADDR", env = "TOLLGATE_OUTBOUND", value_parser = value::address)]
    pub outbound: Option<SocketAddr>,
    /// Listen on an address that other machines can reach, although clients need no credentials
    #[arg(help_heading = "Security", long, env = "TOLLGATE_INSECURE", value_parser = BoolishValueParser::new(), hide_short_help = true)]
    pub insecure: bool,
    /// Proxies whose forwarding headers are trusted: an address or a network. By default this machine, and none for the
    /// gateway
    #[arg(
        help_heading = "Security",
        long,
        value_name = "CIDR",
        env = "TOLLGATE_TRUSTED_PROXY",
        value_delimiter = ',',
        hide_short_help = true
    )]
    pub trusted_proxy: Vec<Network>,
    /// Which clients may connect, and their credentials.
    #[command(flatten)]
    pub security: SecurityArguments,
    /// The tokens of operators.
    #[command(flatten)]
    pub admin: AdminArguments,
    /// How changes of the policy are applied.
    #[command(flatten)]
    pub reload: ReloadArguments,
    /// How often the counters are written to the state directory; off writes them only when the server stops
    #[arg(help_heading = "State", long, value_name = "DURATION", env = "TOLLGATE_SNAPSHOT_EVERY", default_value = "10s", value_parser = value::interval, hide_short_help = true)]
    pub snapshot_every: SnapshotInterval,
    /// Logs and traces.
    #[command(flatten)]
    pub observability: ObservabilityArguments,
    /// Settings that a compat configuration's own program reads from its environment.
    #[command(flatten)]
    pub compat: CompatArguments,
}
