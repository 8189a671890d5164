//! Arguments about the store: its address, and the credentials for it.

use std::convert::Infallible;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Subcommand};
use tollgate::Ticks;

use super::value;
use crate::store::{NodesChoice, StoreLogin, StoreSettings};

/// A store address as it was typed. It may contain a password, so neither a message of clap's nor `Debug` prints it.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreText(String);

impl StoreText {
    /// The text as it was typed.
    pub(crate) fn text(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for StoreText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StoreText(…)")
    }
}

/// Accepts any text: clap would print a refused one, with its password.
impl FromStr for StoreText {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self(text.to_owned()))
    }
}

/// The store of the counters. The config file may set what is missing here.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Store")]
pub struct StoreArguments {
    /// Where counters live: `memory`, redis://, rediss://, redis-cluster:// or redis-sentinel://…/service; by default
    /// memory
    #[arg(long, value_name = "STORE", env = "TOLLGATE_STORE", hide_env_values = true)]
    pub store: Option<StoreText>,
    /// How long a decision may wait for the store before the fallback decides: 1ms to 50ms; by default 5ms
    #[arg(long, value_name = "DURATION", env = "TOLLGATE_STORE_DEADLINE", value_parser = value::store_deadline, hide_short_help = true)]
    pub store_deadline: Option<Ticks>,
    /// How many servers share the store, for their shares while it is unreachable: a number, or `auto` to count those
    /// that register there
    #[arg(long, value_name = "N|auto", env = "TOLLGATE_STORE_NODES", value_parser = value::nodes, hide_short_help = true)]
    pub store_nodes: Option<NodesChoice>,
    /// Assume at least this many servers, however few are seen
    #[arg(long, value_name = "N", env = "TOLLGATE_STORE_MIN_NODES", value_parser = clap::value_parser!(u32).range(1..=10_000), hide_short_help = true)]
    pub store_min_nodes: Option<u32>,
    /// A file with the secret that all servers hash keys with, 16 bytes or more; the variable TOLLGATE_STORE_SECRET may
    /// contain the secret itself. Without one they agree on one in the store
    #[arg(long, value_name = "FILE", env = "TOLLGATE_STORE_SECRET_FILE", hide_short_help = true)]
    pub store_secret_file: Option<PathBuf>,
    /// The credentials for the store.
    #[command(flatten)]
    pub entrance: EntranceArguments,
}

impl StoreArguments {
    /// The settings of the store.
    pub(crate) fn settings(&self) -> StoreSettings {
        StoreSettings {
            url: self.store.as_ref().map(|text| text.text().to_owned()),
            deadline: self.store_deadline,
            nodes: self.store_nodes,
            min_nodes: self.store_min_nodes,
            secret_file: self.store_secret_file.clone(),
            login: self.entrance.login(),
        }
    }
}

/// The credentials for a store.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Store")]
pub struct EntranceArguments {
    /// The store's user; its password is in --store-password-file or in the variable TOLLGATE_STORE_PASSWORD
    #[arg(long, value_name = "NAME", env = "TOLLGATE_STORE_USER", hide_short_help = true)]
    pub store_user: Option<String>,
    /// A file with the store's password; the variable TOLLGATE_STORE_PASSWORD may contain the password itself
    #[arg(long, value_name = "FILE", env = "TOLLGATE_STORE_PASSWORD_FILE", hide_short_help = true)]
    pub store_password_file: Option<PathBuf>,
    /// CA certificates in PEM for the store's certificate; by default those of the system
    #[arg(long, value_name = "FILE", env = "TOLLGATE_STORE_CA", hide_short_help = true)]
    pub store_ca: Option<PathBuf>,
    /// A client certificate in PEM for the store
    #[arg(long, value_name = "FILE", env = "TOLLGATE_STORE_CERT", hide_short_help = true)]
    pub store_cert: Option<PathBuf>,
    /// The key of that certificate in PEM
    #[arg(long, value_name = "FILE", env = "TOLLGATE_STORE_KEY", hide_short_help = true)]
    pub store_key: Option<PathBuf>,
}

impl EntranceArguments {
    /// The credentials for the store.
    pub(crate) fn login(&self) -> StoreLogin {
        StoreLogin {
            user: self.store_user.clone(),
            password_file: self.store_password_file.clone(),
            ca: self.store_ca.clone(),
            cert: self.store_cert.clone(),
            key: self.store_key.clone(),
        }
    }
}

/// Commands on a store.
#[derive(Debug, Subcommand)]
pub enum StoreCommand {
    /// Report problems of a Redis or Valkey, and how to fix them
    Check(Box<StoreCheckArguments>),
}

const CHECK_HELP: &str = "\
Examples:
  tollgate store check redis://127.0.0.1:6379
  tollgate store check --json \\
    redis-cluster://127.0.0.1:7001,127.0.0.1:7002,127.0.0.1:7003
  tollgate store check rediss://127.0.0.1:6379 \\
    --store-password-file password --store-ca ca.pem

The password is in --store-password-file or in the variable TOLLGATE_STORE_PASSWORD. The command writes a few keys
that begin with tg: and removes them.
Exit status: 0 when the store is fit (warnings are allowed), 1 when it is not, 2 for wrong usage.";

/// The arguments of `store check`.
#[derive(Debug, Args)]
#[command(after_long_help = CHECK_HELP)]
pub struct StoreCheckArguments {
    /// The store: redis://, rediss://, redis-cluster:// or redis-sentinel://…/service
    #[arg(value_name = "URL", env = "TOLLGATE_STORE", hide_env_values = true)]
    pub url: StoreText,
    /// The credentials for the store.
    #[command(flatten)]
    pub entrance: EntranceArguments,
    /// The deadline that latencies are compared with; by default 5ms
    #[arg(long, value_name = "DURATION", env = "TOLLGATE_STORE_DEADLINE", value_parser = value::store_deadline)]
    pub store_deadline: Option<Ticks>,
    /// Print the findings as JSON
    #[arg(long)]
    pub json: bool,
}
