//! `tollgate serve`: from the arguments to a server that runs until a stop signal.

use std::mem::take;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tollgate::Clock;

use crate::callers::CallersFile;
use crate::cli::ServeArguments;
use crate::config::{Config, OpenedConfig};
use crate::console::Console;
use crate::control::admin::{self, web_console};
use crate::disk;
use crate::fleet::PeerClient;
use crate::identity::Identity;
use crate::log;
use crate::reload::{self, ServedRequests, Start};
use crate::service::Service;
use crate::snapshot;
use crate::store::StoreChoice;
use crate::store_watch::StoreWatch;
use crate::tls::Tls;
use crate::{FAILURE, SUCCESS, USAGE};
use listeners::{Listeners, OpenListeners, Proxying};
use settings::Settings;
use started::Started;

mod settings;
mod banner;
mod counters;
mod listeners;
mod membership;
mod example_request;
mod observability;
mod shedding;
mod signal;
mod started;
mod stop;

/// How often leases are renewed and returned.
const MAINTAIN_EVERY: Duration = Duration::from_millis(5);
/// How often the wall clock is checked for a change.
const WALL_EVERY: Duration = Duration::from_secs(1);
/// How long threads that wait for a disk may delay the end of a server.
const THREADS_TIMEOUT: Duration = Duration::from_secs(1);

/// Starts the server and waits for its end.
pub(crate) fn run(arguments: &ServeArguments, console: &mut Console) -> u8 {
    let log = match log::start(arguments.observability.log_format) {
        Ok(log) => log,
        Err(problem) => {
            console.error(problem);
            return USAGE;
        }
    };
    let ended = match Settings::read(arguments).and_then(prepared) {
        Ok(prepared) => running(prepared, console).map_err(|problem| (FAILURE, problem)),
        Err(problem) => Err((USAGE, problem)),
    };
    log.finish();
    match ended {
        Ok(()) => SUCCESS,
        Err((status, problem)) => {
            console.error(problem);
            status
        }
    }
}

/// Starts the threads, and serves on them until a stop signal.
fn running(prepared: Prepared, console: &mut Console) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| {
        format!("the system gives no threads: {}; free some and try again", disk::plain_cause(&error))
    })?;
    let ended = runtime.block_on(serve(prepared, console));
    // Dropping it would wait for every thread, even one whose disk never answers.
    runtime.shutdown_timeout(THREADS_TIMEOUT);
    ended
}

/// Checks everything that can be checked before anything is opened.
fn prepared(mut settings: Settings) -> Result<Prepared, String> {
    let state_dir = settings.reload.state_dir.as_deref();
    if let Some(path) = state_dir {
        disk::answers(path).map_err(|error| {
            let cause = disk::plain_cause(&error);
            format!("--state-dir {}: {cause}; mount it again, or name another directory", path.display())
        })?;
    }
    // Counters of an earlier process continue on its clock. A shared store has its own clock.
    let is_memory = StoreChoice::is_memory(&settings.flags.store, &settings.config.store);
    let own_state = state_dir.filter(|_| is_memory);
    let clock = Clock::resumed(snapshot::wall(own_state));
    let tls = settings.tls.clone().map(|files| Tls::open(files, clock.now())).transpose()?;
    let config = &mut settings.config;
    let OpenedConfig { store, callers } = config.open(&settings.flags, clock.now())?;
    let identity = Identity::of(&config.reader);
    let start =
        reload::start(settings.policy.as_ref(), settings.reload.state_dir.as_deref(), identity.credentials())
            .map_err(|error| format!("no policy to serve\n{error}"))?;
    let Config { routes, overload, .. } = &settings.config;
    if let Some(compat) = start.loaded.rules.compat().filter(|_| !routes.is_empty()) {
        return Err(format!(
            "the policy is a file of {}, which knows no requests of HTTP, and the gateway needs limits of Tollgate's own; \
             `tollgate policy convert` writes them",
            compat.format().name()
        ));
    }
    if overload.is_some() && routes.is_empty() {
        return Err("overload: in the config is about the gateway, and there is none; add routes: to it, or --upstream".to_owned());
    }
    for warning in &settings.config.warnings {
        tracing::warn!(warning, "the config is accepted, and perhaps not what is meant");
    }
    admin::check_token_list(&settings.admin)?;
    let peers = started::peers(settings.fleet_ca.as_deref(), settings.tls.as_ref())?;
    let served = settings.config.served();
    Ok(Prepared { settings, store, clock, tls, start, callers, served, peers })
}

/// The settings of a server and the files that they name, before it opens anything.
struct Prepared {
    settings: Settings,
    store: StoreChoice,
    clock: Clock,
    tls: Option<Arc<Tls>>,
    start: Start,
    callers: Option<Arc<CallersFile>>,
    /// The requests that policies are for.
    served: ServedRequests,
    /// Asks other nodes.
    peers: PeerClient,
}

async fn serve(mut prepared: Prepared, console: &mut Console) -> Result<(), String> {
    // Registered before the address is bound, so that every signal finds the server prepared.
    let mut signals = signal::Signals::new()
        .map_err(|error| format!("signals cannot be received: {}", disk::plain_cause(&error)))?;
    let hangups = signal::Signals::hangups()
        .map_err(|error| format!("signals cannot be received: {}", disk::plain_cause(&error)))?;
    let settings = &mut prepared.settings;
    let config = &mut settings.config;
    let proxying = Proxying {
        routes: take(&mut config.routes),
        outbound: take(&mut config.outbound),
        taking: take(&mut config.taking),
    };
    let listeners = Listeners::bind(&settings.listen, &proxying.routes).await?;
    let (delay, traces) = (settings.drain_delay, settings.traces.take());
    let (clock, tls) = (prepared.clock.clone(), prepared.tls.clone());
    let providers = proxying.outbound.as_ref().map(|outbound| outbound.providers.as_slice());
    let started = Started::new(prepared, &listeners, providers.unwrap_or_default(), console)?;
    let Started { control, watcher, files, store, snapshots, operator_state, shared, held: _held, announced } =
        started;
    let service = &control.service;
    let mut news = None;
    if let Some(store) = store {
        StoreWatch::join(service).await;
        store.look_at(service);
        if let Some(trouble) = store.trouble() {
            console.line(format_args!("\n  warning: {trouble}"));
            console.flush();
        }
        tokio::spawn(store.run(Arc::clone(service)));
        tokio::spawn(maintain_leases(Arc::clone(service)));
        control.fleet.catch_up().await;
        news = Some(tokio::spawn(Arc::clone(&control.fleet).run()));
    }
    tokio::spawn(follow_wall(Arc::clone(service)));
    tokio::spawn(web_console::record(Arc::clone(&control)));
    tokio::spawn(watcher.run(Arc::clone(service), files, hangups));
    let (stop, stopped) = watch::channel(false);
    let spans = observability::start(&control, traces, &clock)?;
    let OpenListeners { servers, health } =
        listeners.open(&control, proxying, tls.as_ref(), &stopped).await?;
    let writing = snapshots.clone().map(|snapshots| tokio::spawn(snapshots.run(Arc::clone(service))));
    let keeping =
        operator_state.map(|operator_state| tokio::spawn(operator_state.run(Arc::clone(service), shared)));
    let plan = stop::StopPlan { servers, stop, health, spans, delay };
    let ended = plan.until_stopped(&mut signals, &control.readiness).await;
    drop(announced);
    for task in [writing, keeping, news].into_iter().flatten() {
        task.abort();
    }
    if let Some(fleet) = service.engine.store().fleet() {
        // Leases are returned while the store still counts this server.
        fleet.store.close(service.now()).await;
        control.fleet.leave().await;
    }
    if let Some(snapshots) = snapshots {
        stop::keep(snapshots.last(Arc::clone(service)), signals.next()).await;
    }
    ended
}

/// Makes windows and headers follow changes of the wall clock, while it is polled.
async fn follow_wall(service: Arc<Service>) {
    loop {
        tokio::time::sleep(WALL_EVERY).await;
        service.follow_wall();
    }
}

/// Maintains the leases of a shared store, while it is polled.
async fn maintain_leases(service: Arc<Service>) {
    loop {
        tokio::time::sleep(MAINTAIN_EVERY).await;
        let service = Arc::clone(&service);
        // In a separate task, so that a panic does not end the loop.
        let maintained = tokio::spawn(async move {
            if let Some(fleet) = service.engine.store().fleet() {
                fleet.store.maintain(service.now()).await;
            }
        });
        if maintained.await.is_err() {
            tracing::error!(
                "leases were not maintained because of a fault in Tollgate; the next attempt follows"
            );
        }
    }
}
