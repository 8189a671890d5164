//! Arguments to operate a running server.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use tollgate::Ticks;
use tollgate::request::COST_MAX;

use super::value::{self, GivenAttribute};
use crate::control::admin::GivenToken;

/// What to do with a running server.
#[derive(Debug, Subcommand)]
pub enum OperateCommand {
    /// Show what is left for a key on a running server
    Get(KeyArguments),
    /// Say which limits of a running server match these attributes, why not, and what would change it
    Explain(ExplainArguments),
    /// Forget what a running server counted for a key
    Reset(ResetArguments),
    /// Deny every request with these attributes for a while
    Block(BlockArguments),
    /// Remove a block
    Unblock(KeyArguments),
    /// Turn a limit off, or all of them, for a while: by default an hour
    Kill(OverrideArguments),
    /// Put a limit in shadow, or all of them, for a while: it counts and never denies
    Shadow(OverrideArguments),
    /// Enforce a limit for a share of its keys for a while
    Percent(PercentArguments),
    /// Undo kill, shadow or percent
    Restore(RestoreArguments),
    /// Activate the current policy file of a running server
    Reload(ReloadNowArguments),
    /// List a running server's limits, and operators' overrides
    Limits(ListArguments),
    /// Watch the busiest keys of a running server
    Top(TopArguments),
    /// Watch a running server's decisions as they are made
    Tail(TailArguments),
    /// Show what operators did to a running server
    Audit(ListArguments),
}

/// The server, and the credentials for it.
#[derive(Debug, Args)]
pub struct ServerArguments {
    /// The running server: http:// or https:// with its host and port
    #[arg(long, value_name = "URL", env = "TOLLGATE_SERVER", default_value = "http://127.0.0.1:8080")]
    pub server: String,
    /// The admin token, as the server printed it
    #[arg(long, value_name = "TOKEN", env = "TOLLGATE_ADMIN_TOKEN", hide_env_values = true)]
    pub token: Option<GivenToken>,
    /// The file to which the server wrote its token
    #[arg(long, value_name = "FILE", env = "TOLLGATE_ADMIN_TOKEN_FILE")]
    pub token_file: Option<PathBuf>,
    /// TLS settings.
    #[command(flatten)]
    pub trust: TrustArguments,
    /// Print the server's answer as JSON
    #[arg(long)]
    pub json: bool,
}

/// The certificates of both sides, where the server speaks TLS.
#[derive(Debug, Args)]
pub struct TrustArguments {
    /// CA certificates, in PEM, one of which has signed the certificate of an https:// server
    #[arg(long, value_name = "FILE", env = "TOLLGATE_CA")]
    pub ca: Option<PathBuf>,
    /// A certificate chain, in PEM, for a server that asks for one
    #[arg(long, value_name = "FILE", env = "TOLLGATE_CLIENT_CERT", requires = "key")]
    pub cert: Option<PathBuf>,
    /// The private key of that certificate, in PEM
    #[arg(long, value_name = "FILE", env = "TOLLGATE_CLIENT_KEY", requires = "cert")]
    pub key: Option<PathBuf>,
}

/// A key.
#[derive(Debug, Args)]
pub struct KeyArguments {
    /// The attributes of the key's requests: name=text, or name:=5 for a number. A key of CL.THROTTLE or THROTTLE is
    /// key=TEXT; add command=cl.throttle or command=throttle for one of the two
    #[arg(value_name = "NAME=VALUE", required = true, value_parser = value::attribute)]
    pub attributes: Vec<GivenAttribute>,
    /// The server, and the credentials for it.
    #[command(flatten)]
    pub server: ServerArguments,
}

/// The arguments of `explain`.
#[derive(Debug, Args)]
pub struct ExplainArguments {
    /// What is known about the request: name=text, or name:=5 for a number
    #[arg(value_name = "NAME=VALUE", value_parser = value::attribute)]
    pub attributes: Vec<GivenAttribute>,
    /// What the request costs
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(0..=COST_MAX))]
    pub cost: u64,
    /// The server, and the credentials for it.
    #[command(flatten)]
    pub server: ServerArguments,
}

/// The arguments of `reset`.
#[derive(Debug, Args)]
pub struct ResetArguments {
    /// The key.
    #[command(flatten)]
    pub key: KeyArguments,
    /// Only the counters of this limit; may be given several times. A counter that all keys share is reset only this
    /// way
    #[arg(long = "limit", value_name = "LIMIT")]
    pub limits: Vec<String>,
}

/// The arguments of `block`.
#[derive(Debug, Args)]
pub struct BlockArguments {
    /// The key.
    #[command(flatten)]
    pub key: KeyArguments,
    /// For how long, such as 10m or 7d; at most 30d
    #[arg(long = "for", value_name = "DURATION")]
    pub lasting: String,
    /// Why, for the audit log
    #[arg(long, value_name = "TEXT")]
    pub note: Option<String>,
}

/// Which limits.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct ScopeArguments {
    /// The name of the limit
    #[arg(value_name = "LIMIT")]
    pub limit: Option<String>,
    /// All limits at once, including those given in CL.THROTTLE and THROTTLE commands
    #[arg(long)]
    pub all: bool,
    /// A controller of overload, such as worker-shedder, or all of them with `all`
    #[arg(long, value_name = "CONTROLLER")]
    pub overload: Option<String>,
}

/// The arguments of `kill` and `shadow`.
#[derive(Debug, Args)]
pub struct OverrideArguments {
    /// Which limits.
    #[command(flatten)]
    pub scope: ScopeArguments,
    /// For how long, such as 10m; by default an hour, and at most a day
    #[arg(long = "for", value_name = "DURATION")]
    pub lasting: Option<String>,
    /// Why, for the audit log
    #[arg(long, value_name = "TEXT")]
    pub note: Option<String>,
    /// The server, and the credentials for it.
    #[command(flatten)]
    pub server: ServerArguments,
}

/// The arguments of `percent`.
#[derive(Debug, Args)]
#[command(allow_missing_positional = true)]
pub struct PercentArguments {
    /// The name of the limit
    #[arg(value_name = "LIMIT", required_unless_present = "all", conflicts_with = "all")]
    pub limit: Option<String>,
    /// All limits at once
    #[arg(long)]
    pub all: bool,
    /// The share of its keys for which it decides
    #[arg(value_name = "PERCENT", required = true, value_parser = clap::value_parser!(u8).range(0..=100))]
    pub percent: u8,
    /// For how long, such as 12h; by default an hour, and at most 30d
    #[arg(long = "for", value_name = "DURATION")]
    pub lasting: Option<String>,
    /// Why, for the audit log
    #[arg(long, value_name = "TEXT")]
    pub note: Option<String>,
    /// The server, and the credentials for it.
    #[command(flatten)]
    pub server: ServerArguments,
}

/// The arguments of `restore`.
#[derive(Debug, Args)]
pub struct RestoreArguments {
    /// Which limits.
    #[command(flatten)]
    pub scope: ScopeArguments,
    /// The server, and the credentials for it.
    #[command(flatten)]
    pub server: ServerArguments,
}

/// The arguments of `reload`.
#[derive(Debug, Args)]
pub struct ReloadNowArguments {
    /// Even if it looks like an accident; a file that is not a valid policy is refused all the same
    #[arg(long)]
    pub force: bool,
    /// The server, and the credentials for it.
    #[command(flatten)]
    pub server: ServerArguments,
}

/// The arguments of `limits` and `audit`.
#[derive(Debug, Args)]
pub struct ListArguments {
    /// The server, and the credentials for it.
    #[command(flatten)]
    pub server: ServerArguments,
}

/// The arguments of `top`.
#[derive(Debug, Args)]
pub struct TopArguments {
    /// How many keys
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    pub limit: u64,
    /// Show once, and end
    #[arg(long)]
    pub once: bool,
    /// The server, and the credentials for it.
    #[command(flatten)]
    pub server: ServerArguments,
}

/// The arguments of `tail`.
#[derive(Debug, Args)]
pub struct TailArguments {
    /// Only denials
    #[arg(long)]
    pub denied: bool,
    /// Watch for a second, and end
    #[arg(long)]
    pub once: bool,
    /// The server, and the credentials for it.
    #[command(flatten)]
    pub server: ServerArguments,
}

const DIFF_HELP: &str = "\
Two files are compared here; one is compared with the policy of a running server:
  tollgate policy diff old.yaml new.yaml
  tollgate policy diff old.yaml new.yaml --trace requests.jsonl
  tollgate policy diff new.yaml --live --for 30s

A trace has a request on each line, in order of time, with `at` as RFC 3339 or in milliseconds since 1970:
  {\"at\": \"2030-01-31T12:00:00.250Z\", \"attributes\": {\"api_key\": \"k1\"}, \"cost\": 1}

Exit status: 0 when nothing differs, 1 when something does, 2 when it cannot be compared.";

/// The arguments of `policy diff`.
#[derive(Debug, Args)]
#[command(after_help = DIFF_HELP)]
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
    /// The server, and the credentials for it.
    #[command(flatten)]
    pub server: ServerArguments,
}
