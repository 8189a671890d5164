//! Arguments about TLS and authentication, and about changes while the server runs.

use std::path::PathBuf;

use clap::Args;

use crate::reload::ReloadSettings;
use crate::tls::{TlsFiles, TlsVersion};

/// Which clients may connect, and their credentials.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Security")]
pub struct SecurityArguments {
    /// The certificate chain of this server in PEM: every protocol then uses TLS
    #[arg(
        long,
        value_name = "FILE",
        env = "TOLLGATE_TLS_CERT",
        requires = "tls_key",
        hide_short_help = true
    )]
    pub tls_cert: Option<PathBuf>,
    /// The private key of the certificate in PEM
    #[arg(
        long,
        value_name = "FILE",
        env = "TOLLGATE_TLS_KEY",
        requires = "tls_cert",
        hide_short_help = true
    )]
    pub tls_key: Option<PathBuf>,
    /// CA certificates in PEM: every client must then present a certificate that one of them signed
    #[arg(
        long,
        value_name = "FILE",
        env = "TOLLGATE_TLS_CLIENT_CA",
        requires = "tls_cert",
        hide_short_help = true
    )]
    pub tls_client_ca: Option<PathBuf>,
    /// The oldest version of TLS to accept
    #[arg(
        long,
        value_name = "VERSION",
        env = "TOLLGATE_TLS_MIN_VERSION",
        value_enum,
        default_value = "1.3",
        hide_short_help = true
    )]
    pub tls_min_version: TlsVersion,
    /// A file with the token that clients must send; the variable TOLLGATE_AUTH_TOKEN may contain the token itself
    #[arg(long, value_name = "FILE", env = "TOLLGATE_AUTH_TOKEN_FILE", hide_short_help = true)]
    pub auth_token_file: Option<PathBuf>,
}

impl SecurityArguments {
    /// The files of TLS, if it is enabled.
    pub(crate) fn tls_files(&self) -> Option<TlsFiles> {
        Some(TlsFiles {
            certificate: self.tls_cert.clone()?,
            key: self.tls_key.clone()?,
            client_authorities: self.tls_client_ca.clone(),
            oldest: self.tls_min_version,
        })
    }
}

/// How changes of the policy are applied.
#[derive(Clone, Debug, Default, Args)]
pub struct ReloadArguments {
    /// A directory for what must survive a restart: counters, the last good policy, overrides and blocks
    #[arg(help_heading = "State", long, value_name = "DIR", env = "TOLLGATE_STATE_DIR")]
    pub state_dir: Option<PathBuf>,
    /// Accept every policy that compiles, even if most limits vanish, one is switched off, or a number changes tenfold
    #[arg(help_heading = "Policy", long, env = "TOLLGATE_FORCE_RELOAD", value_parser = clap::builder::BoolishValueParser::new(), hide_short_help = true)]
    pub force_reload: bool,
}

impl ReloadArguments {
    /// The settings for the watcher of the policy.
    pub(crate) fn settings(&self) -> ReloadSettings {
        ReloadSettings { state_dir: self.state_dir.clone(), is_forced: self.force_reload }
    }
}
