//! A server that is assembled and does not serve yet: its counters, its service and its control plane. It prints its
//! banner before it counts.

use std::sync::Arc;

use super::Prepared;
use super::banner;
use super::counters::{Counting, Opened};
use super::listeners::Listeners;
use super::shedding;
use crate::cli::ServeArguments;
use crate::console::Console;
use crate::control::ControlPlane;
use crate::control::admin::{self, Admin};
use crate::orders::Orders;
use crate::readiness::Readiness;
use crate::reload::{WatchedFiles, Watcher};
use crate::service::Service;
use crate::snapshot::{HeldDirectory, Snapshots};
use crate::store_watch::StoreWatch;

/// The parts of a server.
pub(super) struct Started {
    pub(super) control: Arc<ControlPlane>,
    /// Watches the policy and the other files.
    pub(super) watcher: Watcher,
    pub(super) beside: WatchedFiles,
    /// Watches a shared store.
    pub(super) store: Option<Arc<StoreWatch>>,
    pub(super) snapshots: Option<Arc<Snapshots>>,
    pub(super) orders: Option<Arc<Orders>>,
    /// Held for the life of the server, so that no other server uses its directory.
    pub(super) held: Option<HeldDirectory>,
}

impl Started {
    /// Assembles a server, and prints its banner.
    ///
    /// # Errors
    /// When the state directory, the tokens or the settings cannot be used.
    pub(super) fn new(
        arguments: &ServeArguments,
        prepared: Prepared,
        listeners: &Listeners,
        console: &mut Console,
    ) -> Result<Self, String> {
        let Prepared { clock, auth, tls, mut start, callers, reader, headers, choice, overload, .. } =
            prepared;
        let addresses = listeners.addresses()?;
        let opened = Opened::open(choice, arguments, listeners.resp.is_some(), &clock)?;
        // After the counters, which lock the directory.
        let said = arguments.reload.state_dir.as_deref().map(|path| Orders::open(path, &clock));
        let lines = said.iter().filter_map(|said| said.line.as_deref());
        let state: Vec<&str> = opened.state_line().into_iter().chain(lines).collect();
        let told = banner::BannerNotes { store: &opened.store_lines(), state: &state };
        let credentials = admin::credentials(&arguments.admin.tokens())?;
        for line in banner::lines(&start, &addresses, arguments, auth.is_required(), &told, &credentials) {
            console.line(line);
        }
        console.flush();

        let settings = arguments.reload.settings();
        let (reloader, watcher) = Watcher::new(&mut start, arguments.policy.as_ref(), &settings, clock.now());
        let (policy, foreign) = start.loaded.rules.into_parts();
        let Counting { engine, throttled, snapshots, held, watch: store } =
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
        let admin = Admin::new(credentials.tokens, addresses.http, &arguments.admin.admin_host, clock);
        let control = Arc::new(ControlPlane {
            service: Arc::new(service),
            reloader,
            readiness: Readiness::of(tls.clone(), callers.clone(), store.clone()),
            snapshots: snapshots.as_ref().map(|snapshots| Arc::clone(&snapshots.board)).unwrap_or_default(),
            orders: orders.clone(),
            admin: admin.where_all_may_ask(is_open),
            scraping: tokio::sync::Mutex::default(),
        });
        Ok(Self { control, watcher, beside: WatchedFiles { tls, callers }, store, snapshots, orders, held })
    }
}
