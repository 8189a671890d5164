//! `tollgate serve`: from the arguments to a server that runs until a stop signal.

use std::mem::take;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tollgate::{Clock, HeaderPolicy};
use tollgate_gateway::{RoutePlan, Taking};
use tollgate_overload::Plan;

use crate::auth::Auth;
use crate::callers::CallersFile;
use crate::cli::ServeArguments;
use crate::config::{self, Config};
use crate::console::Console;
use crate::disk;
use crate::identity::Identity;
use crate::log;
use crate::policy_warnings::UntrustedAttributes;
use crate::reload::{self, Start};
use crate::service::Service;
use crate::snapshot;
use crate::store::StoreChoice;
use crate::store_watch::StoreWatch;
use crate::tls::Tls;
use crate::{FAILURE, SUCCESS};
use listeners::{Listeners, OpenListeners, Proxying};
use started::Started;
use tollgate_tower::attributes::Reader;

mod banner;
mod counters;
mod listeners;
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
    let log = log::start(arguments.observability.log_format);
    let started = prepared(arguments).and_then(|prepared| {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
        let runtime = runtime
            .map_err(|error| format!("the system gives no threads: {error}; free some and try again"))?;
        let ended = runtime.block_on(serve(arguments, prepared, console));
        // Dropping it would wait for every thread, even one whose disk never answers.
        runtime.shutdown_timeout(THREADS_TIMEOUT);
        ended
    });
    log.finish();
    match started {
        Ok(()) => SUCCESS,
        Err(problem) => {
            console.error(problem);
            FAILURE
        }
    }
}

/// Checks everything that can be checked before anything is opened.
fn prepared(arguments: &ServeArguments) -> Result<Prepared, String> {
    let auth = Auth::from(arguments.security.auth_token_file.as_deref())?;
    let is_guarded = auth.is_required() || arguments.security.tls_client_ca.is_some();
    let all = [Some(arguments.http), arguments.grpc.address(), arguments.resp.address()];
    if !is_guarded && !arguments.insecure {
        all.into_iter().flatten().try_for_each(is_loopback)?;
    }
    let mut config = config::load(arguments.config.as_deref(), &arguments.trusted_proxy)?;
    let choice = StoreChoice::of(&arguments.store.settings(), &config.store)?;
    let state_dir = arguments.reload.state_dir.as_deref();
    if let Some(path) = state_dir {
        disk::answers(path).map_err(|error| {
            format!("--state-dir {}: {error}; mount it again, or name another directory", path.display())
        })?;
    }
    // Counters of an earlier process continue on its clock. A shared store has its own clock.
    let clock = Clock::resumed(snapshot::wall(state_dir.filter(|_| matches!(choice, StoreChoice::Memory))));
    let tls = arguments.security.tls_files().map(|files| Tls::open(files, clock.now())).transpose()?;
    let callers = arguments.callers.as_ref().or(config.callers.as_ref());
    let callers = callers.map(|path| CallersFile::open(path, &config.reader, clock.now())).transpose()?;
    config.reader.callers = callers.as_ref().map(|callers| callers.live());
    config.taking.reader.callers = config.reader.callers.clone();
    let identity = Identity::of(&config.reader);
    let start = reload::start(arguments.policy.as_ref(), state_dir, identity.credentials())
        .map_err(|error| format!("no policy to serve\n{error}"))?;
    let Config { reader, taking, callers: _, headers, store: _, mut routes, overload, warnings } = config;
    routes.extend(arguments.upstream.as_ref().map(RoutePlan::of_flag));
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
    if !routes.is_empty() {
        for warning in UntrustedAttributes::of(&reader).warnings(start.loaded.rules.policy()) {
            tracing::warn!(warning, "the policy is accepted, and perhaps not what is meant");
        }
    }
    for warning in warnings {
        tracing::warn!(warning, "the config is accepted, and perhaps not what is meant");
    }
    Ok(Prepared { clock, auth, tls, start, callers, reader, taking, headers, choice, routes, overload })
}

/// The validated settings of a server, before it opens anything.
struct Prepared {
    clock: Clock,
    auth: Auth,
    tls: Option<Arc<Tls>>,
    start: Start,
    callers: Option<Arc<CallersFile>>,
    reader: Reader,
    headers: HeaderPolicy,
    taking: Taking,
    choice: StoreChoice,
    /// The routes of the gateway. Without any there is no gateway.
    routes: Vec<RoutePlan>,
    /// The overload controllers of the gateway.
    overload: Option<Plan>,
}

/// Any client that can connect can use up the quota of any key. So only this machine may connect, unless clients must
/// authenticate or the operator insists.
fn is_loopback(address: SocketAddr) -> Result<(), String> {
    if address.ip().is_loopback() {
        return Ok(());
    }
    Err(format!(
        "{address} can be reached from other machines, and clients there need no credentials; require a token with \
         --auth-token-file or for certificates with --tls-client-ca, listen on 127.0.0.1:{port}, or, on a network where \
         everybody is trusted, add --insecure",
        port = address.port()
    ))
}

async fn serve(
    arguments: &ServeArguments,
    mut prepared: Prepared,
    console: &mut Console,
) -> Result<(), String> {
    // Registered before the address is bound, so that every signal finds the server prepared.
    let mut signals =
        signal::Signals::new().map_err(|error| format!("signals cannot be received: {error}"))?;
    let hangups =
        signal::Signals::hangups().map_err(|error| format!("signals cannot be received: {error}"))?;
    let listeners = Listeners::bind(arguments, &prepared.routes).await?;
    let (clock, tls) = (prepared.clock.clone(), prepared.tls.clone());
    let proxying = Proxying { routes: take(&mut prepared.routes), taking: take(&mut prepared.taking) };
    let started = Started::new(arguments, prepared, &listeners, console)?;
    let Started { control, watcher, beside, store, snapshots, operator_state, held: _held, announced } =
        started;
    let service = &control.service;
    if let Some(store) = store {
        StoreWatch::join(service).await;
        store.look_at(service);
        tokio::spawn(store.run(Arc::clone(service)));
        tokio::spawn(maintain_leases(Arc::clone(service)));
    }
    tokio::spawn(follow_wall(Arc::clone(service)));
    tokio::spawn(watcher.run(Arc::clone(service), beside, hangups));
    let (stop, stopped) = watch::channel(false);
    let spans = observability::start(&control, &arguments.observability, &clock)?;
    let OpenListeners { servers, health } =
        listeners.open(&control, proxying, tls.as_ref(), &stopped).await?;
    let writing = snapshots.clone().map(|snapshots| tokio::spawn(snapshots.run(Arc::clone(service))));
    let keeping = operator_state.map(|operator_state| tokio::spawn(operator_state.run(Arc::clone(service))));
    let plan = stop::StopPlan { servers, stop, health, spans, delay: arguments.drain_delay };
    let ended = plan.until_stopped(&mut signals, &control.readiness).await;
    drop(announced);
    for task in [writing, keeping].into_iter().flatten() {
        task.abort();
    }
    if let Some(fleet) = service.engine.store().fleet() {
        // Leases are returned while the store still counts this server.
        fleet.store.close(service.now()).await;
        fleet.redis().leave().await;
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
