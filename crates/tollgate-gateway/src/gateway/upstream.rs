//! One upstream: its connections, its limit of concurrent requests, and the outcome of each request. Idle HTTP/1
//! connections are kept in a pool; an HTTP/2 connection carries many requests.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::header::{HOST, HeaderValue, USER_AGENT};
use http::uri::{Authority, Parts as UriParts, Scheme};
use http::{Request, Response, StatusCode, Uri, Version, request};
use tokio::time::Instant;
use tollgate_tower::HeldPermits;

use super::answer::{Home, UpstreamBody};
use super::cause::{Cause, details};
use super::dialer::{ConnectionSender, Dialer};
use super::fields;
use super::health::Health;
use super::http1::client::{Http1Connection, Trouble};
use super::leaving::{self, Asking};
use super::metrics::UpstreamMetrics;
use super::plan::{RoutePlan, Timeouts, UpstreamPlan};
use super::rendezvous::UpstreamWeight;
use super::shared::{self, H2, RefusedRequest, SharedConnections, StreamShare};
use super::shares::{ClientShares, Full, ShareOwner, Slot};
use super::upload::{Upload, UploadBody};
use crate::listen::UpstreamBudget;

/// How long a connection may be idle, unless the upstream announces less.
const REST: Duration = Duration::from_secs(30);
/// The margin by which the gateway stays below the time that an upstream announces, so that both sides do not close a
/// connection at one instant.
const REST_MARGIN: Duration = Duration::from_secs(1);
/// Maximum idle connections.
const RESTING_MAX: usize = 256;

/// How many connections may turn out to be closed, before anything is sent, until a request fails.
const ENDED_MAX: usize = RESTING_MAX + 2;
/// How many shared connections the upstream may close while a request is being sent. The next one is used by this
/// request alone.
const LEFT_MAX: usize = 2;

/// The `User-Agent` of a health check.
const HEALTH_AGENT: &str = concat!("tollgate-health/", env!("CARGO_PKG_VERSION"));

/// Why there is no answer, with the cause for clients and the details for the log.
#[derive(Debug)]
pub(super) enum UpstreamFailure {
    /// No connection could be made: nothing was sent.
    Connect(Cause, String),
    /// No slot was free in time: nothing was sent.
    Busy(Scarce),
    /// The client's share had no free slot in time: nothing was sent.
    Share(Scarce),
    /// The upstream says that it has not processed the request.
    Refused,
    /// An idle HTTP/1 connection was already closed: nothing was sent.
    Unsent,
    /// The upstream accepts no more requests on an HTTP/2 connection, or has closed it, and has not processed this one.
    Left,
    /// An idle connection ended while the request was being sent, and the request may be repeated. Usually the upstream
    /// had closed the connection before.
    Stale,
    /// The connection ended before an answer.
    Lost(Cause, String),
    /// No answer came in time.
    Late,
}

/// What the request waited for in vain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scarce {
    /// Requests in flight at one upstream.
    Requests,
    /// Tunnels open at one upstream.
    Tunnels,
    /// Connections of this process to all upstreams.
    Connections,
    /// Requests that wait for their body.
    Uploads,
}

impl fmt::Display for Scarce {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Scarce::Requests => "requests",
            Scarce::Tunnels => "tunnels",
            Scarce::Connections => "connections",
            Scarce::Uploads => "uploads that have not begun",
        })
    }
}

impl UpstreamFailure {
    fn full(full: Full, scarce: Scarce) -> Self {
        match full {
            Full::Client => UpstreamFailure::Share(scarce),
            Full::All => UpstreamFailure::Busy(scarce),
        }
    }
}

impl fmt::Display for UpstreamFailure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UpstreamFailure::Connect(_, details) => write!(formatter, "no connection: {details}"),
            UpstreamFailure::Busy(scarce) => write!(formatter, "as many {scarce} are there as may be"),
            UpstreamFailure::Share(scarce) => write!(
                formatter,
                "its client has as many {scarce} as one may; a balancer belongs among trusted_proxies, and per_client says how many"
            ),
            UpstreamFailure::Refused => formatter.write_str("it was refused unseen"),
            UpstreamFailure::Left => formatter.write_str("the upstream left its connection before it"),
            UpstreamFailure::Unsent => formatter.write_str("a connection that had rested had ended"),
            UpstreamFailure::Stale => {
                formatter.write_str("a connection that had rested ended as it was sent")
            }
            UpstreamFailure::Lost(_, details) => write!(formatter, "it was lost: {details}"),
            UpstreamFailure::Late => formatter.write_str("no answer in time"),
        }
    }
}

/// An upstream.
pub(super) struct Upstream {
    pub(super) name: String,
    pub(super) share: UpstreamWeight,
    pub(super) health: Health,
    pub(super) numbers: UpstreamMetrics,
    dialer: Dialer,
    timeouts: Timeouts,
    requests: Arc<ClientShares>,
    tunnels: Arc<ClientShares>,
    /// Each client's share of the connections to all upstreams, where those are few.
    links: Option<Arc<ClientShares>>,
    /// Idle HTTP/1 connections, the last used last. Locked to push and to pop.
    resting: Mutex<Vec<Resting>>,
    /// HTTP/2 connections. A task that makes one holds the lock.
    shared: SharedConnections,
    dialing: tokio::sync::Mutex<()>,
}

struct Resting {
    connection: Box<Http1Connection>,
    until: Instant,
}

/// Whether a request may use an idle HTTP/1 connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum IdleConnections {
    Allowed,
    Skipped,
}

/// Whether a connection has carried requests before.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ConnectionAge {
    New,
    Reused,
}

/// A request that can be sent more than once.
pub(super) struct Outgoing {
    pub(super) parts: request::Parts,
    pub(super) upload: Upload,
    pub(super) is_upgrade: bool,
    /// The client whose share of the upstream it uses.
    pub(super) client: ShareOwner,
    /// Its concurrency permits.
    pub(super) held: Option<HeldPermits>,
}

/// An answer, and the slots that it holds until it is over.
pub(super) type UpstreamAnswer = (Response<UpstreamBody>, RequestSlots);

/// A slot at the upstream, and one of the client's share of all connections, where those are counted. Boxed because
/// that is rare.
type Slots = (Slot, Option<Box<Slot>>);

/// The slots of a request, and its stream on a shared connection.
pub(super) struct RequestSlots {
    _slots: Slots,
    _stream: Option<StreamShare>,
}

impl Upstream {
    /// An upstream of a route.
    ///
    /// # Errors
    /// As [`Dialer::new`].
    pub(super) fn new(
        plan: &UpstreamPlan,
        route: &RoutePlan,
        links: &UpstreamBudget,
        shares: Option<Arc<ClientShares>>,
    ) -> Result<Self, String> {
        let name = plan.target.to_string();
        Ok(Self {
            share: UpstreamWeight::new(&name, plan.weight),
            health: Health::default(),
            numbers: UpstreamMetrics::default(),
            dialer: Dialer::new(&plan.target, route, links)
                .map_err(|problem| format!("route {:?}: {name}: {problem}", route.name))?,
            timeouts: route.timeouts,
            requests: ClientShares::new(
                route.connections,
                ClientShares::part(route.connections, route.per_client),
            ),
            tunnels: ClientShares::new(route.tunnels, ClientShares::part(route.tunnels, route.per_client)),
            links: shares,
            resting: Mutex::default(),
            shared: SharedConnections::default(),
            dialing: tokio::sync::Mutex::default(),
            name,
        })
    }

    /// Sends a request, and waits for the head of its answer. `idle` says whether it may use an idle HTTP/1
    /// connection.
    ///
    /// # Errors
    /// When no answer comes. The failure says whether the upstream may have seen the request.
    pub(super) async fn send(
        self: &Arc<Self>,
        outgoing: &Outgoing,
        idle: IdleConnections,
    ) -> Result<UpstreamAnswer, UpstreamFailure> {
        let (slots, left) = self.slots(outgoing).await?;
        if outgoing.is_upgrade {
            if self.dialer.is_only_h2() {
                let details = "it speaks HTTP/2, which knows no upgrades; set protocol: auto".to_owned();
                return Err(UpstreamFailure::Connect(Cause::Protocol, details));
            }
            let sender = Box::pin(within(left, self.dialer.dial_http1())).await?;
            return Ok((
                self.over(sender, outgoing, ConnectionAge::New).await?,
                RequestSlots { _slots: slots, _stream: None },
            ));
        }
        let mut is_left = 0;
        for _ in 0..ENDED_MAX {
            let kept = if is_left < LEFT_MAX { self.kept(idle) } else { None };
            let (sender, age) = match kept {
                Some(sender) => (sender, ConnectionAge::Reused),
                // The upstream may allow few requests on a connection, and others would use those of a shared one
                // before this returned request. So it gets a connection of its own.
                None if is_left == LEFT_MAX => {
                    (Box::pin(within(left, self.dialer.dial())).await?, ConnectionAge::New)
                }
                None => (Box::pin(self.dialed(left)).await?, ConnectionAge::New),
            };
            let stream = sender.stream();
            match self.over(sender, outgoing, age).await {
                Err(UpstreamFailure::Unsent) if outgoing.upload.is_whole() => {} // The next one is older, or new.
                Err(UpstreamFailure::Left) if outgoing.upload.is_whole() && is_left < LEFT_MAX => {
                    is_left += 1
                }
                sent => return Ok((sent?, RequestSlots { _slots: slots, _stream: stream })),
            }
        }
        Err(UpstreamFailure::Lost(Cause::HungUp, "one connection after the other ended".to_owned()))
    }

    /// The host and port, for a request that names no host.
    fn authority(&self) -> &str {
        self.name.split_once("://").map_or("", |(_, authority)| authority)
    }

    /// Waits for a slot among the requests or the tunnels. Returns it with the rest of the connect timeout.
    async fn slots(&self, outgoing: &Outgoing) -> Result<(Slots, Duration), UpstreamFailure> {
        let (shares, scarce) = match outgoing.is_upgrade {
            true => (&self.tunnels, Scarce::Tunnels),
            false => (&self.requests, Scarce::Requests),
        };
        let taken = shares.take(outgoing.client, self.timeouts.connect).await;
        let (slot, left) = taken.map_err(|full| UpstreamFailure::full(full, scarce))?;
        let shares_connections = self.dialer.is_only_h2() && !outgoing.is_upgrade;
        let Some(links) = self.links.as_ref().filter(|_| !shares_connections) else {
            return Ok(((slot, None), left));
        };
        let taken = links.take(outgoing.client, left).await;
        let (link, left) = taken.map_err(|full| UpstreamFailure::full(full, Scarce::Connections))?;
        Ok(((slot, Some(Box::new(link))), left))
    }

    /// Closes idle connections, because new ones are needed and no descriptors are free.
    pub(super) fn make_room(&self) {
        self.shared.tidy();
        self.resting.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// A slot for a request of a client, if one is free.
    pub(super) fn free_slot(&self, client: ShareOwner) -> Option<Slot> {
        self.requests.try_take(client).ok()
    }

    /// An existing connection.
    fn kept(&self, idle: IdleConnections) -> Option<ConnectionSender> {
        if let Some(h2) = self.shared.one() {
            return Some(ConnectionSender::H2(h2));
        }
        if idle == IdleConnections::Skipped {
            return None;
        }
        let now = Instant::now();
        let mut resting = self.resting.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(mut kept) = resting.pop() {
            if kept.until > now && kept.connection.is_fit() {
                return Some(ConnectionSender::Http1(kept.connection));
            }
        }
        None
    }

    /// Makes a new connection. Where requests share connections, the first request that needs one makes it.
    async fn dialed(&self, timeout: Duration) -> Result<ConnectionSender, UpstreamFailure> {
        if !self.dialer.is_only_h2() {
            return Ok(self.keep_shared(within(timeout, self.dialer.dial()).await?));
        }
        let begun = Instant::now();
        let alone = tokio::time::timeout(timeout, self.dialing.lock()).await;
        let _alone = alone.map_err(|_| too_slow())?;
        if let Some(h2) = self.shared.one() {
            return Ok(ConnectionSender::H2(h2));
        }
        let left = timeout.saturating_sub(begun.elapsed());
        Ok(self.keep_shared(within(left, self.dialer.dial()).await?))
    }

    fn keep_shared(&self, sender: ConnectionSender) -> ConnectionSender {
        if let ConnectionSender::H2(h2) = &sender {
            self.shared.keep(h2);
        }
        sender
    }

    /// Sends a request on a connection. The large futures that few requests need are boxed, so that the common one is
    /// small.
    async fn over(
        self: &Arc<Self>,
        sender: ConnectionSender,
        outgoing: &Outgoing,
        age: ConnectionAge,
    ) -> Result<Response<UpstreamBody>, UpstreamFailure> {
        match sender {
            ConnectionSender::Http1(connection) => self.over_http1(connection, outgoing, age).await,
            ConnectionSender::H2(h2) => Box::pin(self.over_h2(h2, outgoing)).await,
            ConnectionSender::Upgrade(mut sender) => {
                Box::pin(async move {
                    let request = outgoing.request(Version::HTTP_11, self.dialer.scheme(), self.authority());
                    let (held, timeout) = (outgoing.held.clone(), self.timeouts.response);
                    let sending = async move { sender.try_send_request(request).await };
                    let sent = self.in_time(leaving::to_its_end(sending, held, timeout), outgoing).await?;
                    let answered = sent
                        .ok_or(UpstreamFailure::Late)?
                        .map(|response| response.map(UpstreamBody::Incoming));
                    answered.map_err(|unsent| lost(unsent.error()))
                })
                .await
            }
        }
    }

    async fn over_h2(&self, h2: H2, outgoing: &Outgoing) -> Result<Response<UpstreamBody>, UpstreamFailure> {
        let request = outgoing.request(Version::HTTP_2, self.dialer.scheme(), self.authority());
        let stream = h2.stream();
        let sent = self.in_time(self.shared.send(h2, request), outgoing).await?;
        let answered = sent.map(|response| response.map(UpstreamBody::Incoming));
        answered.map_err(|unsent| match shared::refusal(&unsent) {
            Some(RefusedRequest::One) => UpstreamFailure::Refused,
            Some(RefusedRequest::Connection) => {
                self.shared.leave(&stream);
                UpstreamFailure::Left
            }
            None => lost(unsent.error()),
        })
    }

    /// Sends a request on an HTTP/1 connection, which returns to the pool when the answer is over, if both sides keep
    /// it open.
    async fn over_http1(
        self: &Arc<Self>,
        connection: Box<Http1Connection>,
        outgoing: &Outgoing,
        age: ConnectionAge,
    ) -> Result<Response<UpstreamBody>, UpstreamFailure> {
        let is_reused = age == ConnectionAge::Reused;
        let timeout = self.timeouts.response;
        let asked = Asking::new(connection, outgoing, timeout).ask(self.authority());
        let (head, connection) = asked.await.map_err(|trouble| match trouble {
            Trouble::Late => UpstreamFailure::Late,
            Trouble::Unsent(_) if is_reused => UpstreamFailure::Unsent,
            Trouble::Gone(_) if is_reused && outgoing.is_repeatable() => UpstreamFailure::Stale,
            Trouble::Unsent(why) | Trouble::Gone(why) => UpstreamFailure::Lost(Cause::HungUp, why),
            Trouble::Lost(cause, why) => UpstreamFailure::Lost(cause, why),
        })?;
        let rest = head.is_kept.then(|| rest(head.response.headers())).flatten();
        let held = outgoing.held.clone();
        let home = Home { upstream: Arc::clone(self), client: outgoing.client, rest, held, timeout };
        Ok(head.response.map(|()| UpstreamBody::new(connection, head.body, home)))
    }

    /// Runs `sending`, and fails if the deadline passes.
    async fn in_time<F: Future>(
        &self,
        sending: F,
        outgoing: &Outgoing,
    ) -> Result<F::Output, UpstreamFailure> {
        outgoing.upload.in_time(self.timeouts.response, sending).await.ok_or(UpstreamFailure::Late)
    }

    /// Keeps an idle connection whose answer is over.
    pub(super) fn keep(&self, connection: Box<Http1Connection>, rest: Duration) {
        let until = Instant::now() + rest;
        let mut resting = self.resting.lock().unwrap_or_else(PoisonError::into_inner);
        if resting.len() >= RESTING_MAX {
            resting.remove(0); // The one that was idle for longest.
        }
        resting.push(Resting { connection, until });
    }

    /// Sends a health check on a connection of its own. Returns its status.
    pub(super) async fn look(self: &Arc<Self>, path: &str) -> Option<StatusCode> {
        let request = Request::get(path).header(USER_AGENT, HEALTH_AGENT);
        let (parts, ()) = request.body(()).ok()?.into_parts();
        let (upload, client) = (Upload::empty(), ShareOwner::Many);
        let outgoing = Outgoing { parts, upload, is_upgrade: false, client, held: None };
        match self.dialer.dial().await.ok()? {
            ConnectionSender::Http1(mut connection) => {
                let asked = connection.ask(&outgoing, self.authority(), self.timeouts.response);
                Some(asked.await.ok()?.response.status())
            }
            ConnectionSender::H2(mut h2) => {
                let request = outgoing.request(Version::HTTP_2, self.dialer.scheme(), self.authority());
                Some(h2.sender.send_request(request).await.ok()?.status())
            }
            ConnectionSender::Upgrade(_) => None, // No upgrade was requested.
        }
    }

    /// Closes connections that were idle for too long.
    pub(super) fn tidy(&self) {
        self.shared.tidy();
        let now = Instant::now();
        let mut resting = self.resting.lock().unwrap_or_else(PoisonError::into_inner);
        resting.retain_mut(|kept| kept.until > now && kept.connection.is_fit());
    }
}

impl Outgoing {
    /// Whether the request may be repeated after an upstream may have seen it.
    fn is_repeatable(&self) -> bool {
        self.parts.method.is_idempotent() && self.upload.is_whole()
    }

    /// The request as hyper expects it: HTTP/1 names its host in a field, HTTP/2 in the target. A health check names
    /// none and gets the name of the upstream, because every request must name a host.
    fn request(&self, version: Version, scheme: Scheme, authority: &str) -> Request<UploadBody> {
        let mut parts = self.parts.clone();
        parts.version = version;
        if !parts.headers.contains_key(HOST)
            && let Ok(host) = HeaderValue::from_str(authority)
        {
            parts.headers.insert(HOST, host);
        }
        if version == Version::HTTP_2 {
            let host = parts.headers.remove(HOST);
            let host = host.and_then(|host| Authority::try_from(host.as_bytes()).ok());
            let mut uri = UriParts::default();
            uri.path_and_query = parts.uri.path_and_query().cloned();
            uri.authority = Some(host.unwrap_or_else(|| Authority::from_static("localhost")));
            uri.scheme = Some(scheme);
            if let Ok(uri) = Uri::from_parts(uri) {
                parts.uri = uri;
            }
        }
        Request::from_parts(parts, self.upload.lend().holding(self.held.clone()))
    }
}

/// Makes a connection within this time.
async fn within(
    timeout: Duration,
    dialing: impl Future<Output = std::io::Result<ConnectionSender>>,
) -> Result<ConnectionSender, UpstreamFailure> {
    match tokio::time::timeout(timeout, dialing).await {
        Ok(dialed) => dialed.map_err(|error| match error.kind() {
            std::io::ErrorKind::QuotaExceeded => UpstreamFailure::Busy(Scarce::Connections),
            _ => UpstreamFailure::Connect(Cause::of_connecting(&error), details(&error)),
        }),
        Err(_) => Err(too_slow()),
    }
}

fn too_slow() -> UpstreamFailure {
    UpstreamFailure::Connect(Cause::Slow, "none in time".to_owned())
}

/// How long a connection may be idle after an answer with these fields.
fn rest(headers: &http::HeaderMap) -> Option<Duration> {
    let granted = fields::kept_for(headers).map(Duration::from_secs);
    let rest = granted.map_or(REST, |granted| granted.saturating_sub(REST_MARGIN).min(REST));
    Some(rest).filter(|rest| !rest.is_zero())
}

fn lost(error: &hyper::Error) -> UpstreamFailure {
    UpstreamFailure::Lost(Cause::of_asking(error), details(error))
}
