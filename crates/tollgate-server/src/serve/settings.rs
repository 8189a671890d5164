//! The settings of a server: the arguments and the config file as plain values, each validated once. Nothing behind it
//! knows of the command line.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::PathBuf;
use std::time::Duration;

use tollgate_compat::Options;
use tollgate_gateway::RoutePlan;

use crate::auth::Auth;
use crate::cli::ServeArguments;
use crate::config::{self, Config, ConfigFlags};
use crate::control::admin::TokenSettings;
use crate::reload::ReloadSettings;
use crate::snapshot::SnapshotInterval;
use crate::tls::TlsFiles;

/// Where the gateway listens by default.
const GATEWAY_DEFAULT: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 8000));

/// The settings.
pub(super) struct Settings {
    pub(super) listen: Addresses,
    pub(super) auth: Auth,
    /// The files of TLS, if it is enabled.
    pub(super) tls: Option<TlsFiles>,
    /// Whether clients must present a certificate.
    pub(super) has_client_ca: bool,
    /// The config file. Its routes and callers include those of the arguments.
    pub(super) config: Config,
    pub(super) policy: Option<PathBuf>,
    pub(super) reload: ReloadSettings,
    /// The store and the callers of the arguments, which take precedence over the config.
    pub(super) flags: ConfigFlags,
    /// Bytes for all counters.
    pub(super) memory: u64,
    pub(super) snapshot_every: SnapshotInterval,
    pub(super) compat: Options,
    pub(super) admin: TokenSettings,
    /// The names by which the admin interface may be called.
    pub(super) admin_hosts: Vec<String>,
    /// The URL of the admin interface for other nodes, if it is given.
    pub(super) advertised: Option<String>,
    /// The CA by which nodes trust each other's admin interface.
    pub(super) fleet_ca: Option<PathBuf>,
    pub(super) traces: Option<TraceSettings>,
    pub(super) drain_delay: Duration,
}

/// The address or the bound listener of each protocol. Without one a protocol is not served.
pub(super) struct Listening<T> {
    pub(super) http: T,
    pub(super) grpc: Option<T>,
    pub(super) resp: Option<T>,
    /// Where requests to upstreams are taken, if there are routes.
    pub(super) gateway: Option<T>,
    /// Where calls to other people's APIs are taken, if the config has `outbound`.
    pub(super) outbound: Option<T>,
}

/// The address of each protocol.
pub(super) type Addresses = Listening<SocketAddr>;

/// Where traces are sent, and which share of decisions is traced, in parts per million.
pub(super) struct TraceSettings {
    pub(super) endpoint: String,
    pub(super) sample: u32,
}

impl Settings {
    /// Reads the config file, and what else the arguments name.
    ///
    /// # Errors
    /// When the arguments or the config file cannot be used.
    pub(super) fn read(arguments: &ServeArguments) -> Result<Self, String> {
        let auth = Auth::from(arguments.security.auth_token_file.as_deref())?;
        let mut config = config::load(arguments.config.as_deref(), &arguments.trusted_proxy)?;
        let outbound = match (&config.outbound, arguments.outbound) {
            (None, Some(_)) => {
                return Err(
                    "--outbound: the config has no `outbound` with the providers to call; add it".to_owned()
                );
            }
            (plan, chosen) => plan.as_ref().map(|plan| chosen.unwrap_or(plan.listen)),
        };
        config.routes.extend(arguments.upstream.as_ref().map(RoutePlan::of_flag));
        let gateway = match (config.routes.is_empty(), arguments.gateway) {
            (true, Some(address)) => {
                return Err(format!(
                    "--gateway {address}: there is nothing behind it; add --upstream URL with the service, or `routes` to \
                     the config"
                ));
            }
            (true, None) => None,
            (false, chosen) => Some(chosen.unwrap_or(GATEWAY_DEFAULT)),
        };
        let listen = Addresses {
            outbound,
            http: arguments.http,
            grpc: arguments.grpc.address(),
            resp: arguments.resp.address(),
            gateway,
        };
        let has_client_ca = arguments.security.tls_client_ca.is_some();
        if !has_client_ca && !arguments.insecure {
            if !auth.is_required() {
                let named = [Some(listen.http), listen.grpc, listen.resp];
                named.into_iter().flatten().try_for_each(is_loopback)?;
            }
            listen.outbound.map_or(Ok(()), is_loopback_of_outbound)?;
        }
        let flags = ConfigFlags { store: arguments.store.settings(), callers: arguments.callers.clone() };
        let traces = arguments.observability.otlp.clone();
        let sample = arguments.observability.otlp_sample;
        Ok(Self {
            listen,
            auth,
            tls: arguments.security.tls_files(),
            has_client_ca,
            config,
            policy: arguments.policy.clone(),
            reload: arguments.reload.settings(),
            flags,
            memory: arguments.memory,
            snapshot_every: arguments.snapshot_every,
            compat: arguments.compat.options(),
            admin: arguments.admin.tokens(),
            admin_hosts: arguments.admin.admin_host.clone(),
            advertised: arguments.admin.advertise_admin.clone(),
            fleet_ca: arguments.admin.fleet_ca.clone(),
            traces: traces.map(|endpoint| TraceSettings { endpoint, sample }),
            drain_delay: arguments.drain_delay,
        })
    }
}

/// Any client that can connect can use up the quota of any key. So only this machine may connect, unless clients must
/// authenticate or the operator insists.
fn is_loopback(address: SocketAddr) -> Result<(), String> {
    if address.ip().is_loopback() {
        return Ok(());
    }
    Err(format!(
        "{address} can be reached from other machines, and clients there need no credentials; require a token with \
         --auth-token-file or certificates with --tls-client-ca, listen on 127.0.0.1:{port}, or, on a network where \
         everybody is trusted, add --insecure",
        port = address.port()
    ))
}

/// The credentials in calls through the outbound proxy are those of providers, so it checks no token of its own.
fn is_loopback_of_outbound(address: SocketAddr) -> Result<(), String> {
    if address.ip().is_loopback() {
        return Ok(());
    }
    Err(format!(
        "--outbound: {address} can be reached from other machines, and the outbound proxy checks no token: credentials in \
         calls are those of the providers; require certificates with --tls-client-ca, listen on 127.0.0.1:{port}, or, on \
         a network where everybody is trusted, add --insecure",
        port = address.port()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without authentication only loopback addresses are accepted, and the error names the flag for others.
    #[test]
    fn only_loopback_is_safe() {
        let checked = |address: &str| is_loopback(address.parse().unwrap());
        for address in ["127.0.0.1:80", "127.9.9.9:80", "[::1]:80"] {
            assert!(checked(address).is_ok(), "{address}");
        }
        for address in ["0.0.0.0:80", "[::]:80", "10.0.0.1:80", "[::ffff:127.0.0.1]:80"] {
            assert!(checked(address).is_err_and(|error| error.contains("--insecure")), "{address}");
        }
    }
}
