//! Arguments to operate a running server.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use tollgate::request::COST_MAX;

use super::value::{self, GivenAttribute};
use crate::control::admin::GivenToken;

/// The end of a command's help: its examples, and its exit status.
macro_rules! help {
    (done: $($example:literal),+) => {
        help!("0 when it was done, 2 when the server could not be asked, or knows nothing of the name.": $($example),+)
    };
    (passes: $($example:literal),+) => {
        help!(
            "0 when such a request passes now, 1 when it is denied, 2 when the server could not be asked.":
            $($example),+
        )
    };
    (undone: $($example:literal),+) => {
        help!(
            "0 when something was undone, 1 when there was nothing to undo, 2 when the server could not be asked.":
            $($example),+
        )
    };
    ($status:literal: $($example:literal),+) => {
        concat!("Examples:\n", $("  tollgate ", $example, "\n",)+ "\nExit status: ", $status)
    };
}

/// Commands to a running server.
#[derive(Debug, Subcommand)]
pub enum OperateCommand {
    /// Show the remaining quota of a key on a running server
    #[command(after_long_help = help!(passes: "get api_key=k1", "get api_key=k1 --json"))]
    Get(GetArguments),
    /// Say which limits apply to a request, and what would let it pass
    #[command(after_long_help = help!(
        passes: "explain api_key=k1",
        "explain method=POST path=/login ip=198.51.100.7",
        "explain tenant=acme prompt_tokens:=300 max_tokens:=700"
    ))]
    Explain(ExplainArguments),
    /// Forget what a running server counted for a key
    #[command(after_long_help = help!(
        "0 when a counter was reset, 1 when there was none, 2 when the server could not be asked or refused.":
        "reset api_key=k1                    # every counter of the key",
        "reset api_key=k1 --limit per-key    # only that of one limit"
    ))]
    Reset(ResetArguments),
    /// Deny every request with these attributes for a while
    #[command(after_long_help = help!(done: "block api_key=k1 --for 10m --note abuse"))]
    Block(BlockArguments),
    /// Remove a block
    #[command(after_long_help = help!(undone: "unblock api_key=k1"))]
    Unblock(KeyArguments),
    /// Turn a limit off, or all of them, for a while: by default an hour
    #[command(after_long_help = help!(done: "kill per-key --for 10m --note incident", "kill --all"))]
    Kill(OverrideArguments),
    /// Put a limit in shadow for a while: it counts and never denies
    #[command(after_long_help = help!(done: "shadow per-key --for 1h"))]
    Shadow(OverrideArguments),
    /// Enforce a limit for a share of its keys for a while
    #[command(after_long_help = help!(done: "percent per-key 10 --for 12h"))]
    Percent(PercentArguments),
    /// Undo kill, shadow or percent
    #[command(after_long_help = help!(undone: "restore per-key", "restore --all"))]
    Restore(RestoreArguments),
    /// Activate the current policy file of a running server
    #[command(after_long_help = help!(
        "0 when the files on disk are active, 1 when one of them is refused, 2 when the server could not be asked.":
        "reload", "reload --force"
    ))]
    Reload(ReloadNowArguments),
    /// List a running server's limits, and operators' overrides
    #[command(after_long_help = help!(done: "limits", "limits --json"))]
    Limits(ListArguments),
    /// Watch the busiest keys of a running server
    #[command(after_long_help = help!(
        done: "top                                 # redrawn every second; q leaves",
        "top --once --sort denied --limit per-key",
        "top --once --json"
    ))]
    Top(TopArguments),
    /// Watch a running server's decisions as they are made
    #[command(after_long_help = help!(
        done: "tail                                # every decision; q leaves",
        "tail --once --verdict deny --limit per-key",
        "tail --once --denied --since 10m  # what was denied before, too",
        "tail --once --denied --since 1h ip=203.0.113.7"
    ))]
    Tail(TailArguments),
    /// Show what operators did to a running server
    #[command(after_long_help = help!(done: "audit", "audit --json"))]
    Audit(AuditArguments),
    /// List the servers that share a running server's store
    #[command(after_long_help = help!(done: "fleet", "fleet --json"))]
    Fleet(ListArguments),
}

/// The server, and the credentials for it.
#[derive(Debug, Args)]
#[command(next_help_heading = "Server")]
pub struct ServerArguments {
    /// The running server: http:// or https:// with its host and port; by default the newest on this machine
    ///
    /// A server of this user announces its address and its token in the runtime directory, so that neither is needed on
    /// the machine where it runs.
    #[arg(long = "admin", visible_alias = "server", value_name = "URL", env = "TOLLGATE_SERVER")]
    pub server: Option<String>,
    /// The admin token, as the server printed it
    #[arg(
        long,
        value_name = "TOKEN",
        env = "TOLLGATE_ADMIN_TOKEN",
        hide_env_values = true,
        hide_short_help = true
    )]
    pub token: Option<GivenToken>,
    /// The file to which the server wrote its token
    #[arg(long, value_name = "FILE", env = "TOLLGATE_ADMIN_TOKEN_FILE", hide_short_help = true)]
    pub token_file: Option<PathBuf>,
    /// TLS settings.
    #[command(flatten)]
    pub trust: TrustArguments,
    /// Print the server's answer as JSON
    #[arg(long, help_heading = "Output")]
    pub json: bool,
}

/// The certificates of both sides, where the server speaks TLS.
#[derive(Debug, Args)]
#[command(next_help_heading = "Server")]
pub struct TrustArguments {
    /// CA certificates, in PEM, one of which has signed the certificate of an https:// server
    #[arg(long, value_name = "FILE", env = "TOLLGATE_CA", hide_short_help = true)]
    pub ca: Option<PathBuf>,
    /// A certificate chain, in PEM, for a server that asks for one
    #[arg(long, value_name = "FILE", env = "TOLLGATE_CLIENT_CERT", requires = "key", hide_short_help = true)]
    pub cert: Option<PathBuf>,
    /// The private key of that certificate, in PEM
    #[arg(long, value_name = "FILE", env = "TOLLGATE_CLIENT_KEY", requires = "cert", hide_short_help = true)]
    pub key: Option<PathBuf>,
}

/// Which nodes of a fleet to show.
#[derive(Debug, Args)]
#[command(next_help_heading = "Server")]
pub struct NodeArguments {
    /// Only this node of the fleet, by the name or id that `tollgate fleet` lists; `this` for the server that is asked.
    /// By default all nodes
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
}

impl NodeArguments {
    /// The parameter of the query that chooses the nodes.
    pub(crate) fn query(&self) -> String {
        let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~:[]".contains(byte);
        match &self.node {
            None => "fleet=auto".to_owned(),
            // No node has such a name; the server says which there are.
            Some(node) if !node.bytes().all(|byte| is_plain(&byte)) => "node=?".to_owned(),
            Some(node) => format!("node={node}"),
        }
    }
}

/// The arguments of `get`.
#[derive(Debug, Args)]
pub struct GetArguments {
    /// The key.
    #[command(flatten)]
    pub key: KeyArguments,
    /// Which nodes of a fleet to show.
    #[command(flatten)]
    pub nodes: NodeArguments,
}

/// The arguments of `audit`.
#[derive(Debug, Args)]
pub struct AuditArguments {
    /// Which nodes of a fleet to show.
    #[command(flatten)]
    pub nodes: NodeArguments,
    /// The server, and the credentials for it.
    #[command(flatten)]
    pub server: ServerArguments,
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
    /// Attributes of the request: name=text, or name:=5 for a number
    #[arg(value_name = "NAME=VALUE", value_parser = value::attribute)]
    pub attributes: Vec<GivenAttribute>,
    /// The cost of the request
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(0..=COST_MAX))]
    pub cost: u64,
    /// Which nodes of a fleet to show.
    #[command(flatten)]
    pub nodes: NodeArguments,
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
    #[arg(long = "for", value_name = "DURATION", value_parser = value::period)]
    pub lasting: String,
    /// Why, for the audit log
    #[arg(long, value_name = "TEXT")]
    pub note: Option<String>,
    /// Also by attributes that no limit uses and no request is known to have
    #[arg(long)]
    pub anyway: bool,
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
    #[arg(long = "for", value_name = "DURATION", value_parser = value::period)]
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
    #[arg(long = "for", value_name = "DURATION", value_parser = value::period)]
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

/// The arguments of `limits` and `fleet`.
#[derive(Debug, Args)]
pub struct ListArguments {
    /// The server, and the credentials for it.
    #[command(flatten)]
    pub server: ServerArguments,
}

/// The order of the keys of `top`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TopSorting {
    /// Most decisions first
    Decisions,
    /// Most decisions in the last second first; with --once most decisions
    Rate,
    /// Most denials first, including those that a limit in shadow would have made
    Denied,
    /// The largest share of denials first, including those that a limit in shadow would have made
    Share,
    /// By the name of the limit, then by key
    Name,
}

/// The arguments of `top`.
#[derive(Debug, Args)]
pub struct TopArguments {
    /// How many keys
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    pub keys: u64,
    /// Only keys of this limit; may be given several times
    #[arg(long = "limit", value_name = "LIMIT")]
    pub limits: Vec<String>,
    /// Only keys that were denied, or would have been by a limit in shadow
    #[arg(long)]
    pub denied: bool,
    /// The order of the keys
    #[arg(long, value_enum, value_name = "ORDER", default_value = "decisions")]
    pub sort: TopSorting,
    /// Show once, and end
    #[arg(long)]
    pub once: bool,
    /// Which nodes of a fleet to show.
    #[command(flatten)]
    pub nodes: NodeArguments,
    /// The server, and the credentials for it.
    #[command(flatten)]
    pub server: ServerArguments,
}

/// A verdict, as `tail` filters by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TailVerdict {
    /// It passed
    Allow,
    /// It was denied, for now or for ever
    Deny,
}

/// The arguments of `tail`.
#[derive(Debug, Args)]
pub struct TailArguments {
    /// Only requests with these attributes: name=text, or name:=5 for a number
    #[arg(value_name = "NAME=VALUE", value_parser = value::attribute)]
    pub attributes: Vec<GivenAttribute>,
    /// Only decisions with this verdict
    #[arg(long, value_enum, value_name = "VERDICT")]
    pub verdict: Option<TailVerdict>,
    /// Only denials: the same as --verdict deny
    #[arg(long, conflicts_with = "verdict")]
    pub denied: bool,
    /// Only decisions that a limit in shadow would have denied
    #[arg(long, conflicts_with_all = ["verdict", "denied"])]
    pub would_deny: bool,
    /// Begin with the denials of the last DURATION, such as 10m; the server remembers up to 1,000, and up to 1,000 of
    /// limits in shadow; where there were more, the latest of each key
    #[arg(long, value_name = "DURATION")]
    pub since: Option<String>,
    /// Only decisions of this limit; may be given several times
    #[arg(long = "limit", value_name = "LIMIT")]
    pub limits: Vec<String>,
    /// Also by attributes that no limit uses and no request is known to have
    #[arg(long)]
    pub anyway: bool,
    /// Watch for a second, and end
    #[arg(long)]
    pub once: bool,
    /// Which nodes of a fleet to show.
    #[command(flatten)]
    pub nodes: NodeArguments,
    /// The server, and the credentials for it.
    #[command(flatten)]
    pub server: ServerArguments,
}
