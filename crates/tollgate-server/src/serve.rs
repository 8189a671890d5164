//! `tollgate serve`: from what was typed to a server that answers until it is told to stop.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tollgate::overload::Plan;
use tollgate::{Clock, HeaderPolicy};

use crate::auth::Auth;
use crate::callers::CallersFile;
use crate::cli::{ListenChoice, ServeArguments};
use crate::config::{self, Config};
use crate::console::Console;
use crate::control::ControlPlane;
use crate::control::admin::{self, Admin};
use crate::doubts::Strangers;
use crate::gateway::{self, Gateway, RoutePlan, Taking};
use crate::identity::Identity;
use crate::listen::{Door, House, Room, Stream};
use crate::orders::Orders;
use crate::readiness::Readiness;
use crate::reload::{self, Beside, Start, Watcher};
use crate::service::Service;
use crate::shutdown::Stop;
use crate::store::Choice;
use crate::store_watch::Watch;
use crate::tls::{Inside, Tls};
use crate::{FAILURE, SUCCESS};
use crate::{grpc, http, listen, log, resp};
use counters::{Counting, Opened};
use tollgate_tower::attributes::Reader;

mod banner;
mod counters;
mod sample;
mod see;
mod shedding;
mod signal;
mod stop;

/// How often leases are renewed and given back.
const TEND_EVERY: Duration = Duration::from_millis(5);
/// How often it is looked whether the wall clock was set.
const WALL_EVERY: Duration = Duration::from_secs(1);
/// How long threads that wait for a disk may keep a server that has ended.
const THREADS_TIMEOUT: Duration = Duration::from_secs(1);

/// Starts the server and waits for its end.
pub(crate) fn run(arguments: &ServeArguments, console: &mut Console) -> u8 {
    let log = log::start(arguments.see.log_format);
    let started = prepared(arguments).and_then(|prepared| {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
        let runtime = runtime
            .map_err(|error| format!("the system gives no threads: {error}; free some and try again"))?;
        let ended = runtime.block_on(serve(arguments, prepared, console));
        // Dropped, it would wait for every thread, even one that a disk never answers.
        runtime.shutdown_timeout(THREADS_TIMEOUT);
        ended
    });
    log.finish();
    match started {
        Ok(()) => SUCCESS,
        Err(problem) => {
            console.problem(format_args!("tollgate: {problem}"));
            FAILURE
        }
    }
}

/// Checks what can be checked before anything is opened.
fn prepared(arguments: &ServeArguments) -> Result<Prepared, String> {
    let clock = Clock::precise();
    let auth = Auth::from(arguments.security.auth_token_file.as_deref())?;
    let tls = arguments.security.tls_files().map(|files| Tls::open(files, clock.now())).transpose()?;
    let is_guarded = auth.is_required() || arguments.security.tls_client_ca.is_some();
    let all = [Some(arguments.http), arguments.grpc.address(), arguments.resp.address()];
    for address in all.into_iter().flatten() {
        is_safe(address, arguments.insecure || is_guarded)?;
    }
    let mut config = config::load(arguments.config.as_deref(), &arguments.trusted_proxy)?;
    let callers = arguments.callers.as_ref().or(config.callers.as_ref());
    let callers = callers.map(|path| CallersFile::open(path, &config.reader, clock.now())).transpose()?;
    config.reader.callers = callers.as_ref().map(|callers| callers.live());
    config.taking.reader.callers = config.reader.callers.clone();
    let identity = Identity::of(&config.reader);
    let start = reload::start(
        arguments.policy.as_ref(),
        arguments.reload.state_dir.as_deref(),
        identity.credentials(),
    )
    .map_err(|error| format!("no policy to serve\n{error}"))?;
    let Config { reader, taking, callers: _, headers, store, mut routes, overload, warnings } = config;
    let choice = Choice::of(&arguments.store.settings(), &store)?;
    routes.extend(arguments.upstream.as_ref().map(RoutePlan::of_flag));
    if let Some(foreign) = start.loaded.rules.foreign().filter(|_| !routes.is_empty()) {
        return Err(format!(
            "the policy is a file of {}, which knows no requests of HTTP, and the gateway needs limits of Tollgate's own; \
             `tollgate policy convert` writes them",
            foreign.format().name()
        ));
    }
    if overload.is_some() && routes.is_empty() {
        return Err("overload: in the config is about the gateway, and there is none; add routes: to it, or --upstream".to_owned());
    }
    if !routes.is_empty() {
        for doubt in Strangers::of(&reader).doubts(start.loaded.rules.policy()) {
            tracing::warn!(doubt, "the policy is accepted, and perhaps not what is meant");
        }
    }
    for warning in warnings {
        tracing::warn!(warning, "the config is accepted, and perhaps not what is meant");
    }
    Ok(Prepared { clock, auth, tls, start, callers, reader, taking, headers, choice, routes, overload })
}

/// What a server needs before it opens anything.
struct Prepared {
    clock: Clock,
    auth: Auth,
    tls: Option<Arc<Tls>>,
    start: Start,
    callers: Option<Arc<CallersFile>>,
    reader: Reader,
    headers: HeaderPolicy,
    taking: Taking,
    choice: Choice,
    /// Of the gateway; without any there is none.
    routes: Vec<RoutePlan>,
    /// What the gateway refuses by when there is no capacity.
    overload: Option<Plan>,
}

/// Whoever can connect can use up anybody's quota, so only this machine may, unless strangers are kept out or the operator insists.
fn is_safe(address: SocketAddr, guarded_or_insecure: bool) -> Result<(), String> {
    if address.ip().is_loopback() || guarded_or_insecure {
        return Ok(());
    }
    Err(format!(
        "{address} can be reached from other machines, and nobody there has to prove who they are; ask for a token with \
         --auth-token-file or for certificates with --tls-client-ca, listen on 127.0.0.1:{port}, or, on a network where \
         everybody is trusted, add --insecure",
        port = address.port()
    ))
}

async fn serve(arguments: &ServeArguments, prepared: Prepared, console: &mut Console) -> Result<(), String> {
    let Prepared { clock, auth, tls, mut start, callers, reader, taking, headers, choice, routes, overload } =
        prepared;
    // Asked for before the address is known to anybody, so that no signal finds the server without a plan.
    let mut signals =
        signal::Signals::new().map_err(|error| format!("signals cannot be received: {error}"))?;
    let hangups =
        signal::Signals::hangups().map_err(|error| format!("signals cannot be received: {error}"))?;
    let http = listen::bind(arguments.http, "--http").await?;
    let grpc = bound(arguments.grpc, "--grpc").await?;
    let resp = bound(arguments.resp, "--resp").await?;
    let public = match routes.is_empty() {
        true => None,
        false => Some(listen::bind(arguments.gateway, "--gateway").await?),
    };
    let addresses = Addresses {
        gateway: public.as_ref().map(address_of).transpose()?,
        http: address_of(&http)?,
        grpc: grpc.as_ref().map(address_of).transpose()?,
        resp: resp.as_ref().map(address_of).transpose()?,
    };
    let opened = Opened::open(choice, arguments, resp.is_some(), &clock)?;
    // After the counters, which take hold of the directory.
    let said = arguments.reload.state_dir.as_deref().map(|path| Orders::open(path, clock.now()));
    let state: Vec<&str> =
        opened.state_line().into_iter().chain(said.iter().filter_map(|said| said.line.as_deref())).collect();
    let told = banner::Told { store: &opened.store_lines(), state: &state };
    let credentials = admin::credentials(&arguments.admin.tokens())?;
    for line in banner::lines(&start, &addresses, arguments, auth.is_required(), &told, &credentials) {
        console.line(line);
    }
    console.flush();

    let (reloader, watcher) =
        Watcher::new(&mut start, arguments.policy.as_ref(), &arguments.reload.settings(), clock.now());
    let (policy, foreign) = start.loaded.rules.into_parts();
    let Counting { engine, throttled, snapshots, held: _held, watch: store } =
        opened.counting(policy, &clock)?;
    let shedding = overload.map(|plan| shedding::start(plan, &engine, &clock)).transpose()?;
    let overload = shedding.as_ref().map(|shedding| Arc::clone(&shedding.shedder));
    let orders = said.map(|said| said.resume(&engine, overload.as_deref(), clock.now()));
    let mut service = Service::new(engine, clock.clone()).reading(reader, headers).throttling(throttled);
    service.capacity = shedding.and_then(|shedding| shedding.capacity);
    let is_open = !auth.is_required() && tls.is_none();
    service.auth = auth;
    if let Some(shedder) = overload {
        service.overload = Some(Arc::clone(&shedder));
        service.meter.show_overload(shedder);
    }
    service.foreign_options = arguments.foreign.options();
    if let Some(foreign) = foreign {
        service.put_in_force(foreign, clock.now()).map_err(|error| error.to_string())?;
    }
    let service = Arc::new(service);
    let admin = Admin::new(credentials.tokens, addresses.http, &arguments.admin.admin_host, clock.clone());
    let control = Arc::new(ControlPlane {
        service: Arc::clone(&service),
        reloader,
        readiness: Readiness::of(tls.clone(), callers.clone(), store.clone()),
        snapshots: snapshots.as_ref().map(|snapshots| Arc::clone(&snapshots.board)).unwrap_or_default(),
        orders: orders.clone(),
        admin: admin.where_all_may_ask(is_open),
        scraping: tokio::sync::Mutex::default(),
    });
    if let Some(store) = store {
        Watch::join(&service).await;
        store.look_at(&service);
        tokio::spawn(store.run(Arc::clone(&service)));
        tokio::spawn(tend(Arc::clone(&service)));
    }
    tokio::spawn(follow_wall(Arc::clone(&service)));
    tokio::spawn(watcher.run(Arc::clone(&service), Beside { tls: tls.clone(), callers }, hangups));
    let (stop, stopped) = watch::channel(false);
    let spans = see::start(&control, &arguments.see, &clock)?;
    let others = [grpc.is_some(), resp.is_some(), public.is_some()];
    let listeners = 1 + others.into_iter().map(usize::from).sum::<usize>();
    let (house, links) = House::new(listeners, public.is_some());
    let (tls, servers) = (tls.as_ref(), JoinSet::new());
    let mut doors = Doors { house, tls, clock: &clock, stopped: &stopped, servers };
    let mut health = None;
    if let Some(listener) = grpc {
        let calls = Arc::new(grpc::Calls::new(Arc::clone(&service)).await);
        health = Some(Arc::clone(&calls));
        let room = doors.house.room();
        doors.open(listener, room, Inside::Grpc, move |stream, stop| {
            grpc::connection(stream, Arc::clone(&calls), stop)
        });
    }
    if let Some(listener) = resp {
        let resp = Arc::new(resp::Resp::new(Arc::clone(&service)));
        let room = doors.house.room();
        doors.open(listener, room, Inside::Unnamed, move |stream, stop| {
            resp::connection(stream, Arc::clone(&resp), stop)
        });
    }
    if let Some(listener) = public {
        let room = doors.house.public_room(taking.bound());
        room.show(&service.meter);
        let gateway = Arc::new(Gateway::new(&routes, taking, Arc::clone(&service), clock.clone(), &links)?);
        gateway.tend(&stopped);
        doors.open(listener, room, Inside::Both, move |stream, stop| {
            gateway::connection(stream, Arc::clone(&gateway), stop)
        });
    }
    let asked = Arc::clone(&control);
    let room = doors.house.room();
    doors.open(http, room, Inside::Http, move |stream, stop| {
        http::connection(stream, Arc::clone(&asked), stop)
    });
    let writing = snapshots.clone().map(|snapshots| tokio::spawn(snapshots.run(Arc::clone(&service))));
    let keeping = orders.map(|orders| tokio::spawn(orders.run(Arc::clone(&service))));
    let plan = stop::Plan { servers: doors.servers, stop, health, spans, delay: arguments.drain_delay };
    let ended = plan.until_stopped(&mut signals, &control.readiness).await;
    for task in [writing, keeping].into_iter().flatten() {
        task.abort();
    }
    if let Some(fleet) = service.engine.store().fleet() {
        // What is held goes back while the store still counts this server.
        fleet.store.close(service.now()).await;
        fleet.redis().leave().await;
    }
    if let Some(snapshots) = snapshots {
        stop::keep(snapshots.last(service), signals.next()).await;
    }
    ended
}

/// What all listeners of the process share.
struct Doors<'a> {
    house: House,
    tls: Option<&'a Arc<Tls>>,
    clock: &'a Clock,
    stopped: &'a watch::Receiver<bool>,
    servers: JoinSet<usize>,
}

impl Doors<'_> {
    /// Serves the connections to a listener.
    fn open<F, C>(&mut self, listener: TcpListener, room: Room, inside: Inside, connection: F)
    where
        F: Fn(Stream, Stop) -> C + Clone + Send + 'static,
        C: Future<Output = ()> + Send + 'static,
    {
        let door = Door::new(self.tls, inside);
        let (clock, stopped) = (self.clock.clone(), self.stopped.clone());
        self.servers.spawn(listen::serve(listener, room, door, clock, stopped, connection));
    }
}

/// Takes hold of a wire's address, if it is to have one.
async fn bound(choice: ListenChoice, flag: &str) -> Result<Option<TcpListener>, String> {
    match choice {
        ListenChoice::At(address) => listen::bind(address, flag).await.map(Some),
        ListenChoice::Off => Ok(None),
    }
}

/// Where each wire listens.
struct Addresses {
    http: SocketAddr,
    grpc: Option<SocketAddr>,
    resp: Option<SocketAddr>,
    gateway: Option<SocketAddr>,
}

fn address_of(listener: &TcpListener) -> Result<SocketAddr, String> {
    listener.local_addr().map_err(|error| format!("the address is not known: {error}"))
}

/// Lets windows and headers follow the wall clock when it is set, as long as it is polled.
async fn follow_wall(service: Arc<Service>) {
    loop {
        tokio::time::sleep(WALL_EVERY).await;
        service.follow_wall();
    }
}

/// Keeps what is held of a shared store's counters in order, as long as it is polled.
async fn tend(service: Arc<Service>) {
    loop {
        tokio::time::sleep(TEND_EVERY).await;
        let service = Arc::clone(&service);
        // In a task of its own: one that panics must not be the last.
        let tended = tokio::spawn(async move {
            if let Some(fleet) = service.engine.store().fleet() {
                fleet.store.maintain(service.now()).await;
            }
        });
        if tended.await.is_err() {
            tracing::error!("leases were not tended because of a fault in Tollgate; they are again");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only this machine may connect, unless the operator insists.
    #[test]
    fn loopback_only_unless_insecure() {
        let safe = |address: &str, insecure| is_safe(address.parse().unwrap(), insecure);
        for address in ["127.0.0.1:80", "127.9.9.9:80", "[::1]:80"] {
            assert!(safe(address, false).is_ok(), "{address}");
        }
        for address in ["0.0.0.0:80", "[::]:80", "10.0.0.1:80", "[::ffff:127.0.0.1]:80"] {
            assert!(safe(address, false).is_err_and(|error| error.contains("--insecure")), "{address}");
            assert!(safe(address, true).is_ok(), "{address}");
        }
    }
}
