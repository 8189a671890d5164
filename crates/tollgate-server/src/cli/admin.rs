//! Arguments about operating a server: the admin tokens and the names of the admin interface.

use std::path::PathBuf;

use clap::Args;

use super::value;
use crate::control::admin::{GivenToken, TokenSettings};

/// The admin tokens of a server.
#[derive(Debug, Args)]
#[command(next_help_heading = "Security")]
pub struct AdminArguments {
    /// A token for the role admin; without any, one is generated and shown at the start
    #[arg(
        long,
        value_name = "TOKEN",
        env = "TOLLGATE_ADMIN_TOKEN",
        hide_env_values = true,
        hide_short_help = true
    )]
    pub admin_token: Option<GivenToken>,
    /// Write that token to this file, readable by this user only, instead of showing it
    #[arg(long, value_name = "FILE", env = "TOLLGATE_ADMIN_TOKEN_FILE", hide_short_help = true)]
    pub admin_token_file: Option<PathBuf>,
    /// Further tokens: a role (viewer, operator or admin), a name and a token on each line
    #[arg(long, value_name = "FILE", env = "TOLLGATE_ADMIN_TOKENS", hide_short_help = true)]
    pub admin_tokens: Option<PathBuf>,
    /// A name by which the admin interface may be called, in addition to localhost and the server's address
    #[arg(
        long,
        value_name = "NAME",
        env = "TOLLGATE_ADMIN_HOST",
        value_delimiter = ',',
        hide_short_help = true
    )]
    pub admin_host: Vec<String>,
    /// The URL at which other servers on the same store reach this one's admin interface; by default the address of
    /// --http, unless that is a wildcard
    #[arg(long, value_name = "URL", env = "TOLLGATE_ADVERTISE_ADMIN", value_parser = value::admin_url, hide_short_help = true)]
    pub advertise_admin: Option<String>,
    /// CA certificates in PEM by which servers on the same store trust each other's https:// admin interface
    #[arg(long, value_name = "FILE", env = "TOLLGATE_FLEET_CA", hide_short_help = true)]
    pub fleet_ca: Option<PathBuf>,
}

impl AdminArguments {
    /// The settings of the tokens.
    pub(crate) fn tokens(&self) -> TokenSettings {
        TokenSettings {
            token: self.admin_token.clone(),
            token_file: self.admin_token_file.clone(),
            tokens: self.admin_tokens.clone(),
        }
    }
}
