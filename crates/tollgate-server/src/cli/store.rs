//! What the user may say about the store that a fleet shares.

use std::convert::Infallible;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Subcommand};
use tollgate::Ticks;

use super::value;

/// An address as it was typed. It may have a password in it, so nothing prints it: neither a message of clap's nor `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreText(String);

impl StoreText {
    /// What was typed.
    pub(crate) fn text(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for StoreText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StoreText(…)")
    }
}

/// Taken as it is: a refusal here would be printed with the password.
impl FromStr for StoreText {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self(text.to_owned()))
    }
}

/// What to do about a store.
#[derive(Debug, Subcommand)]
pub enum StoreCommand {
    /// Say what is wrong with a Redis or Valkey, and how to cure it
    Check(StoreCheckArguments),
}

const CHECK_HELP: &str = "\
Examples:
  tollgate store check redis://127.0.0.1:6379
  tollgate store check redis-cluster://10.0.0.1,10.0.0.2,10.0.0.3 --json
  TOLLGATE_STORE_PASSWORD=… tollgate store check rediss://tollgate@cache.internal --ca authority.pem

It writes a few keys that begin with tg: and removes them. Exit status: 0 when the store is fit (warnings are allowed), 1 when it is not,
2 for wrong usage.";

/// The arguments of `store check`.
#[derive(Debug, Args)]
#[command(after_help = CHECK_HELP)]
pub struct StoreCheckArguments {
    /// The store: redis://, rediss://, redis-cluster:// or redis-sentinel://…/service
    #[arg(value_name = "URL")]
    pub url: StoreText,
    /// How to get in.
    #[command(flatten)]
    pub files: StoreCheckFiles,
    /// The deadline that latencies are judged by, as of `serve --store-deadline`
    #[arg(long, value_name = "DURATION", default_value = "5ms", value_parser = value::store_deadline)]
    pub deadline: Ticks,
    /// Print what was found as JSON
    #[arg(long)]
    pub json: bool,
}

/// Files that let in.
#[derive(Clone, Debug, Default, Args)]
pub struct StoreCheckFiles {
    /// A file with the password; the variable TOLLGATE_STORE_PASSWORD may have the password itself
    #[arg(long, value_name = "FILE", env = "TOLLGATE_STORE_PASSWORD_FILE")]
    pub password_file: Option<PathBuf>,
    /// Authorities in PEM that signed the store's certificate; those of the system unless said
    #[arg(long, value_name = "FILE", env = "TOLLGATE_STORE_CA")]
    pub ca: Option<PathBuf>,
    /// A certificate in PEM to show to the store
    #[arg(long, value_name = "FILE", env = "TOLLGATE_STORE_CERT", requires = "key")]
    pub cert: Option<PathBuf>,
    /// The key of that certificate in PEM
    #[arg(long, value_name = "FILE", env = "TOLLGATE_STORE_KEY", requires = "cert")]
    pub key: Option<PathBuf>,
}
