//! The listeners of a server: the bound addresses, and their protocols.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tollgate::Clock;
use tollgate_gateway::{RequestSettings, RoutePlan};

use super::settings::{Addresses, Listening};
use crate::control::ControlPlane;
use crate::disk::plain_cause;
use crate::gateway;
use crate::listen::{self, ConnectionLimit, FdBudget, GatewayListener, Handshake, Stream};
use crate::outbound::{self, OutboundPlan, OutboundProxy};
use crate::protocol::Protocol;
use crate::shutdown::Stop;
use crate::tls::{AlpnProtocol, Tls};
use crate::{grpc, http, resp};

/// The routes of the gateway, and how it accepts requests.
pub(super) struct Proxying {
    /// Without any route there is no gateway.
    pub(super) routes: Vec<RoutePlan>,
    pub(super) outbound: Option<OutboundPlan>,
    pub(super) taking: RequestSettings,
}

/// Addresses that are bound and not yet served.
pub(super) type Listeners = Listening<TcpListener>;

/// Listeners that are being served.
pub(super) struct OpenListeners {
    pub(super) servers: JoinSet<usize>,
    /// Reports the server's health to gRPC clients.
    pub(super) health: Option<Arc<grpc::Calls>>,
}

impl Listeners {
    /// Binds these addresses, which no route may have as its upstream.
    ///
    /// # Errors
    /// When an address cannot be bound, or is an upstream. The message says what to do.
    pub(super) async fn bind(at: &Addresses, routes: &[RoutePlan]) -> Result<Self, String> {
        let listeners = Self {
            http: listen::bind(at.http, "--http").await?,
            grpc: bound(at.grpc, "--grpc").await?,
            resp: bound(at.resp, "--resp").await?,
            outbound: bound(at.outbound, "--outbound").await?,
            gateway: bound(at.gateway, "--gateway").await?,
        };
        are_no_upstreams(&listeners.addresses()?, routes)?;
        Ok(listeners)
    }

    /// The bound addresses.
    ///
    /// # Errors
    /// When the system does not report an address.
    pub(super) fn addresses(&self) -> Result<Addresses, String> {
        Ok(Addresses {
            gateway: self.gateway.as_ref().map(address_of).transpose()?,
            outbound: self.outbound.as_ref().map(address_of).transpose()?,
            http: address_of(&self.http)?,
            grpc: self.grpc.as_ref().map(address_of).transpose()?,
            resp: self.resp.as_ref().map(address_of).transpose()?,
        })
    }

    /// Serves all listeners until `stopped` turns true.
    ///
    /// # Errors
    /// When the gateway cannot be built from its routes.
    pub(super) async fn open(
        self,
        control: &Arc<ControlPlane>,
        proxying: Proxying,
        tls: Option<&Arc<Tls>>,
        stopped: &watch::Receiver<bool>,
    ) -> Result<OpenListeners, String> {
        let service = &control.service;
        let clock = service.clock();
        let others = [&self.grpc, &self.resp, &self.gateway, &self.outbound].map(Option::is_some);
        let listeners = 1 + others.into_iter().map(usize::from).sum::<usize>();
        let gateway = match (&self.gateway, &self.outbound) {
            (None, None) => GatewayListener::Absent,
            _ => GatewayListener::Present,
        };
        let (budget, upstreams) = FdBudget::new(listeners, gateway);
        let mut tasks = ListenerTasks { budget, tls, clock, stopped, servers: JoinSet::new() };
        let mut health = None;
        if let Some(listener) = self.grpc {
            let calls = Arc::new(grpc::Calls::new(Arc::clone(service)).await);
            health = Some(Arc::clone(&calls));
            let limit = tasks.budget.connection_limit();
            tasks.open(listener, limit, AlpnProtocol::Grpc, move |stream, stop| {
                grpc::connection(stream, Arc::clone(&calls), stop)
            });
        }
        if let Some(listener) = self.resp {
            let resp = Arc::new(resp::Resp::new(Arc::clone(service)));
            let limit = tasks.budget.connection_limit();
            tasks.open(listener, limit, AlpnProtocol::Unnamed, move |stream, stop| {
                resp::connection(stream, Arc::clone(&resp), stop)
            });
        }
        let Proxying { routes, outbound, taking } = proxying;
        if let Some((listener, plan)) = self.outbound.zip(outbound) {
            let proxy = Arc::new(OutboundProxy::new(plan, &upstreams, service)?);
            proxy.follow_secret(service);
            proxy.show(&service.meter);
            proxy.maintain(stopped);
            let _ = control.outbound.set(Arc::clone(&proxy)); // It is built once.
            let limit = tasks.budget.connection_limit();
            let asked = Arc::clone(service);
            tasks.open(listener, limit, AlpnProtocol::Http, move |stream, stop| {
                let open = asked.meter.opened(Protocol::Outbound);
                outbound::connection(stream, Arc::clone(&proxy), open, stop)
            });
        }
        if let Some(listener) = self.gateway {
            let limit = tasks.budget.public_connection_limit(taking.bound());
            limit.show(&service.meter);
            let gateway = gateway::build(&routes, taking, service, &upstreams)?;
            gateway.maintain(stopped);
            tasks.open(listener, limit, AlpnProtocol::Both, move |stream, stop| {
                tollgate_gateway::connection(stream, Arc::clone(&gateway), stop)
            });
        }
        let asked = Arc::clone(control);
        let limit = tasks.budget.connection_limit();
        tasks.open(self.http, limit, AlpnProtocol::Http, move |stream, stop| {
            http::connection(stream, Arc::clone(&asked), stop)
        });
        Ok(OpenListeners { servers: tasks.servers, health })
    }
}

/// State that all listeners of the process share.
struct ListenerTasks<'a> {
    budget: FdBudget,
    tls: Option<&'a Arc<Tls>>,
    clock: &'a Clock,
    stopped: &'a watch::Receiver<bool>,
    servers: JoinSet<usize>,
}

impl ListenerTasks<'_> {
    /// Serves the connections to a listener.
    fn open<F, C>(&mut self, listener: TcpListener, limit: ConnectionLimit, alpn: AlpnProtocol, connection: F)
    where
        F: Fn(Stream, Stop) -> C + Clone + Send + 'static,
        C: Future<Output = ()> + Send + 'static,
    {
        let handshake = Handshake::new(self.tls, alpn);
        let (clock, stopped) = (self.clock.clone(), self.stopped.clone());
        self.servers.spawn(listen::serve(listener, limit, handshake, clock, stopped, connection));
    }
}

/// An upstream that is a listener of this process would send requests in a circle, or hand the server's own
/// interfaces to the gateway's clients.
fn are_no_upstreams(own: &Addresses, routes: &[RoutePlan]) -> Result<(), String> {
    let listeners = [
        ("--http", Some(own.http)),
        ("--grpc", own.grpc),
        ("--resp", own.resp),
        ("--gateway", own.gateway),
        ("--outbound", own.outbound),
    ];
    for target in routes.iter().flat_map(RoutePlan::targets) {
        let is_meant = |(_, address): &(&str, Option<SocketAddr>)| {
            address.is_some_and(|address| target.names_listener(address))
        };
        if let Some((flag, _)) = listeners.iter().find(|listener| is_meant(listener)) {
            return Err(format!(
                "the upstream {target} is this Tollgate's own {flag} address; name the address of the service behind the \
                 gateway, or move {flag} to another port"
            ));
        }
    }
    Ok(())
}

/// Binds the address of a protocol, if it is configured.
async fn bound(address: Option<SocketAddr>, flag: &str) -> Result<Option<TcpListener>, String> {
    match address {
        Some(address) => listen::bind(address, flag).await.map(Some),
        None => Ok(None),
    }
}

fn address_of(listener: &TcpListener) -> Result<SocketAddr, String> {
    listener.local_addr().map_err(|error| format!("the address is not known: {}", plain_cause(&error)))
}
