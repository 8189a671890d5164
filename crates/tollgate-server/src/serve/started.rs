//! A server that is assembled and does not serve yet: its counters, its service and its control plane. It prints its
//! banner before it counts.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use tollgate::Clock;
use tollgate_compat::CompatConfig;

use super::Prepared;
use super::banner;
use super::counters::{CounterSettings, Counting, Opened};
use super::listeners::Listeners;
use super::membership;
use super::settings::{Addresses, Settings};
use super::shedding;
use crate::announcement::{Announced, Announcement};
use crate::config::Config;
use crate::console::Console;
use crate::control::ControlPlane;
use crate::control::admin::web_console::WebConsole;
use crate::control::admin::{self, Admin, Credentials};
use crate::fleet::{FleetMember, MemberParts, PeerClient, PeerTrust};
use crate::operator_state::{OperatorStateFile, SharedState};
use crate::outbound::ProviderPlan;
use crate::readiness::Readiness;
use crate::reload::{WatchedFiles, Watcher};
use crate::service::{Overload, Service};
use crate::snapshot::{HeldDirectory, Snapshots};
use crate::store_watch::StoreWatch;
use crate::tls::{Tls, TlsFiles};

/// The parts of a server.
pub(super) struct Started {
    pub(super) control: Arc<ControlPlane>,
    /// Watches the policy and the other files.
    pub(super) watcher: Watcher,
    pub(super) files: WatchedFiles,
    /// Watches a shared store.
    pub(super) store: Option<Arc<StoreWatch>>,
    pub(super) snapshots: Option<Arc<Snapshots>>,
    pub(super) operator_state: Option<Arc<OperatorStateFile>>,
    /// The operator state that the nodes of a fleet share.
    pub(super) shared: Option<Arc<SharedState>>,
    /// Held for the life of the server, so that no other server uses its directory.
    pub(super) held: Option<HeldDirectory>,
    /// Lets commands on this machine find the server, for as long as it runs.
    pub(super) announced: Option<Announced>,
}

impl Started {
    /// Assembles a server, and prints its banner.
    ///
    /// # Errors
    /// When the state directory, the tokens or the settings cannot be used.
    pub(super) fn new(
        prepared: Prepared,
        listeners: &Listeners,
        providers: &[ProviderPlan],
        console: &mut Console,
    ) -> Result<Self, String> {
        let Prepared { settings, store, clock, tls, mut start, callers, served, peers } = prepared;
        let addresses = listeners.addresses()?;
        let access = access(&settings, tls.as_ref());
        let state_dir = settings.reload.state_dir.as_deref();
        let (memory, snapshot_every) = (settings.memory, settings.snapshot_every);
        let counters =
            CounterSettings { memory, throttles: listeners.resp.is_some(), state_dir, snapshot_every };
        let opened = Opened::open(store, counters, &clock)?; // It locks the state directory.
        let state_start = state_dir.map(|path| OperatorStateFile::open(path, &clock));
        let lines = state_start.iter().filter_map(|state_start| state_start.line.as_deref());
        let state: Vec<&str> = opened.state_line().into_iter().chain(lines).collect();
        let notes = banner::BannerNotes { store: &opened.store_lines(), state: &state, providers };
        let credentials = admin::credentials(&settings.admin)?;
        let (policy, reload) = (settings.policy.as_ref(), &settings.reload);
        let (reloader, watcher) = Watcher::new(&mut start, policy, reload, served, clock.now());
        print(banner::lines(&start, &addresses, access, &notes, &credentials), console);

        let (policy, compat) = start.loaded.rules.into_parts();
        let Counting { engine, throttled, snapshots, held, watch: store } =
            opened.counting(policy, &clock)?;
        let Config { reader, headers, overload, .. } = settings.config;
        let overload = overload.map(|plan| shedding::start(plan, &engine, &clock)).transpose()?;
        let shedder = overload.as_ref().map(|overload| &*overload.shedder);
        let resumed = state_start.map(|state_start| state_start.resume(&engine, shedder, clock.now()));
        let (operator_state, known) = resumed.unzip();
        let shared = engine.store().fleet().map(|_| SharedState::new(known.unwrap_or_default()));
        let mut service = Service::new(engine, clock.clone()).reading(reader, headers).throttling(throttled);
        let is_open = !settings.auth.is_required() && tls.is_none();
        service.auth = settings.auth;
        service.compat_options = settings.compat;
        connect(&mut service, overload, compat, &clock)?;
        let announced = announced(&addresses, access, &credentials);
        let (advertised, origin) = (settings.advertised.clone(), credentials.origin);
        let about = membership::about(advertised, addresses.http, access, origin, &clock);
        let hosts = membership::hosts(settings.admin_hosts, settings.advertised.as_deref());
        let admin = Admin::new(credentials.tokens, addresses.http, &hosts, clock);
        let service = Arc::new(service);
        let fleet = FleetMember::new(MemberParts {
            about,
            reloader: reloader.clone(),
            service: Arc::clone(&service),
            shared: shared.clone(),
            file: operator_state.clone(),
            peers,
        });
        let control = Arc::new(ControlPlane {
            service,
            reloader,
            fleet,
            readiness: Readiness::of(tls.clone(), callers.clone(), store.clone()),
            snapshots: snapshots.as_ref().map(|snapshots| Arc::clone(&snapshots.status)).unwrap_or_default(),
            operator_state: operator_state.clone(),
            admin: if is_open { admin.open_to_all() } else { admin },
            outbound: OnceLock::new(),
            web_console: WebConsole::new(addresses.http.port()),
            scraping: tokio::sync::Mutex::default(),
        });
        let files = WatchedFiles { tls, callers };
        Ok(Self { control, watcher, files, store, snapshots, operator_state, shared, held, announced })
    }
}

/// Prints the banner.
fn print(lines: Vec<String>, console: &mut Console) {
    for line in lines {
        console.line(line);
    }
    console.flush();
}

/// Connects the service with overload control, and activates the rules of another program if there are any.
fn connect(
    service: &mut Service,
    overload: Option<Overload>,
    compat: Option<CompatConfig>,
    clock: &Clock,
) -> Result<(), String> {
    if let Some(overload) = &overload {
        service.meter.show_overload(Arc::clone(&overload.shedder));
    }
    service.overload = overload;
    match compat {
        Some(compat) => service.activate(compat, clock.now()).map_err(|error| error.to_string()),
        None => Ok(()),
    }
}

/// The client that asks other nodes.
pub(super) fn peers(authorities: Option<&Path>, own: Option<&TlsFiles>) -> Result<PeerClient, String> {
    let trust = authorities.map(|authorities| PeerTrust { authorities, own });
    PeerClient::new(trust).map_err(|error| format!("--fleet-ca: {error}"))
}

/// Announces the server to commands of this user on this machine. A server that cannot be announced serves all the same.
fn announced(addresses: &Addresses, access: banner::Access, credentials: &Credentials) -> Option<Announced> {
    let scheme = if access.has_tls { "https" } else { "http" };
    let announcement = Announcement {
        pid: std::process::id(),
        started: Clock::precise().now().unix_micros(),
        admin: format!("{scheme}://{}", banner::reachable(addresses.http)),
        token: credentials.token.as_ref().map(|token| token.reveal().to_owned()),
        token_file: credentials.token_file.clone(),
        http: banner::reachable(addresses.http),
        grpc: addresses.grpc.map(banner::reachable),
        resp: addresses.resp.map(banner::reachable),
    };
    let announced = Announced::new(&announcement);
    if let Err(error) = &announced {
        tracing::debug!(%error, "commands on this machine need --admin and --token to find this server");
    }
    announced.ok()
}

fn access(settings: &Settings, tls: Option<&Arc<Tls>>) -> banner::Access {
    banner::Access {
        needs_token: settings.auth.is_required(),
        has_tls: tls.is_some(),
        has_client_ca: settings.has_client_ca,
    }
}
