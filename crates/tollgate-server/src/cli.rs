//! The command line as the user types it. The commands interpret it.

use std::ffi::OsString;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

mod admin;
mod bench;
mod callers;
mod compat;
mod decide;
mod guard;
mod memory;
mod operate;
mod observability;
mod replay;
mod policy_test;
mod policy;
mod serve;
mod setup;
mod simulate;
mod store;
mod suggest;
mod value;
pub(crate) mod help;
pub(crate) mod environment;
pub(crate) mod usage_error;

pub use crate::console::ColorChoice;
pub use crate::control::admin::GivenToken;
pub use crate::log::LogFormat;
pub use crate::snapshot::SnapshotInterval;
pub use crate::store::NodesChoice;
pub use crate::tls::TlsVersion;
pub use admin::AdminArguments;
pub use bench::{BenchArguments, LoadProtocol};
pub use callers::{AddCallerArguments, CallersCommand, ListCallersArguments, RemoveCallerArguments};
pub use compat::CompatArguments;
pub use decide::DecideArguments;
pub use guard::{ReloadArguments, SecurityArguments};
pub use observability::ObservabilityArguments;
pub use operate::{
    BlockArguments, ExplainArguments, KeyArguments, ListArguments, OperateCommand, OverrideArguments,
    PercentArguments, ReloadNowArguments, ResetArguments, RestoreArguments, ScopeArguments, ServerArguments,
    TailArguments, TailVerdict, TopArguments, TopSorting, TrustArguments,
};
pub use policy::{CheckArguments, ConvertArguments, DiffArguments, PolicyCommand, SchemaArguments};
pub use policy_test::TestArguments;
pub use replay::{ClientChoice, ColumnArguments, ReplayArguments};
pub use serve::ServeArguments;
pub use setup::{
    CompletionsArguments, ConfigCheckArguments, ConfigCommand, InitArguments, InitKind, ManArguments,
};
pub use simulate::{FleetArguments, SimulateCommand};
pub use store::{EntranceArguments, StoreArguments, StoreCheckArguments, StoreCommand, StoreText};
pub use suggest::{SuggestArguments, SuggestPeriod};
pub use tollgate_gateway::Target;
pub use tollgate_tower::attributes::address::Network;
pub use value::{GivenAttribute, GivenValue, ListenChoice};

/// The whole command line.
#[derive(Debug, Parser)]
#[command(name = "tollgate", version, about = "Rate limiting that is exact, fast and pleasant to run")]
pub struct Cli {
    /// When to use colours; NO_COLOR turns them off too
    #[arg(long, global = true, value_enum, value_name = "WHEN", env = "TOLLGATE_COLOR", default_value = "auto", help_heading = help::GENERAL, hide_short_help = true)]
    pub color: ColorChoice,
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

impl Cli {
    /// Parses the arguments. The error is also how help and version are answered.
    ///
    /// # Errors
    /// When they are not understood, or ask for help or the version.
    pub fn parsed(arguments: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        let arguments: Vec<OsString> = arguments.into_iter().collect();
        let mut command = help::arranged(Cli::command());
        // The short help has no room for variables and their values.
        if arguments.iter().any(|argument| argument == "-h") {
            command = help::short(command);
        }
        let mut matches = command.try_get_matches_from(arguments)?;
        Cli::from_arg_matches_mut(&mut matches)
    }

    /// The same with every flag in the short help, for manual pages, which are made from it.
    #[must_use]
    pub fn whole() -> clap::Command {
        help::whole(Cli::command())
    }

    /// The command line as clap knows it, for completions, manual pages and tests.
    #[must_use]
    pub fn arranged() -> clap::Command {
        help::arranged(Cli::command())
    }
}

/// The command.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Answer rate-limiting questions: HTTP, gRPC, RESP, and a gateway
    Serve(Box<ServeArguments>),
    /// Write a commented policy, its tests and a config to start from
    Init(InitArguments),
    /// Check, test, compare, convert and describe policy files
    Policy {
        /// The command on them.
        #[command(subcommand)]
        command: PolicyCommand,
    },
    /// Check and describe config files
    Config {
        /// The command on them.
        #[command(subcommand)]
        command: ConfigCommand,
    },
    /// Add, list and remove known callers
    Callers {
        /// The command on it.
        #[command(subcommand)]
        command: CallersCommand,
    },
    /// Check the store that a fleet shares
    Store {
        /// The command about it.
        #[command(subcommand)]
        command: StoreCommand,
    },
    /// Decide about requests here and now, without a server
    Decide(DecideArguments),
    /// See what a policy would have done to the requests of a log
    Replay(ReplayArguments),
    /// Suggest limits from a log, which would have denied nothing in it
    Suggest(SuggestArguments),
    /// Put a server under load, and measure throughput and latency
    Bench(BenchArguments),
    /// See what limits would do, in virtual time
    Simulate {
        /// The system to simulate.
        #[command(subcommand)]
        command: SimulateCommand,
    },
    /// Operate a running server.
    #[command(flatten)]
    Operate(OperateCommand),
    /// Write completions for a shell to standard output
    Completions(CompletionsArguments),
    /// Write manual pages to a directory
    Man(ManArguments),
}
