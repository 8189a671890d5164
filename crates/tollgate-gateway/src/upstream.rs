//! One upstream: its connections, its limit of concurrent requests, and the outcome of each request. Idle HTTP/1
//! connections are kept in a pool; an HTTP/2 connection carries many requests.

use std::sync::Arc;
use std::time::Duration;

use http::header::USER_AGENT;
use http::{Request, Response, StatusCode, Version};
use tokio::time::Instant;

use crate::cause::{Cause, details};
use crate::dialer::{ConnectionSender, Dialer};
use crate::failure::{ExhaustedResource, UpstreamFailure};
use crate::fields;
use crate::health::Health;
use crate::http1_client::{Http1Connection, RequestFailure};
use crate::http2_client::{self, H2, RefusedRequest, SharedConnections};
use crate::leaving::{self, InFlightRequest};
use crate::listen::UpstreamBudget;
use crate::metrics::UpstreamMetrics;
use crate::outgoing::Outgoing;
use crate::plan::{RoutePlan, Timeouts, UpstreamPlan};
use crate::pool::{ConnectionPool, RESTING_MAX};
use crate::rendezvous::UpstreamWeight;
use crate::shares::{ClientShares, ShareOwner};
use crate::upload::Upload;
use crate::upstream_body::{RequestSlots, ReturnPath, Slots, UpstreamBody};

/// How long a connection may be idle, unless the upstream announces less.
const REST: Duration = Duration::from_secs(30);
/// The margin by which the gateway stays below the time that an upstream announces, so that both sides do not close a
/// connection at one instant.
const REST_MARGIN: Duration = Duration::from_secs(1);
/// How many connections may turn out to be closed, before anything is sent, until a request fails.
const ENDED_MAX: usize = RESTING_MAX + 2;
/// How many shared connections the upstream may close while a request is being sent. The next one is used by this
/// request alone.
const LEFT_MAX: usize = 2;

/// The `User-Agent` of a health check.
const HEALTH_AGENT: &str = concat!("tollgate-health/", env!("CARGO_PKG_VERSION"));

/// An upstream.
pub(crate) struct Upstream {
    pub(crate) name: String,
    pub(crate) share: UpstreamWeight,
    pub(crate) health: Health,
    pub(crate) metrics: UpstreamMetrics,
    dialer: Dialer,
    timeouts: Timeouts,
    pool: Arc<ConnectionPool>,
    tunnels: Arc<ClientShares>,
    /// Each client's share of the connections to all upstreams, where those are few.
    budget: Option<Arc<ClientShares>>,
    /// HTTP/2 connections. A task that makes one holds the lock.
    shared: SharedConnections,
    dialing: tokio::sync::Mutex<()>,
}

/// Whether a request may use an idle HTTP/1 connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum IdleConnections {
    Allowed,
    Skipped,
}

/// Whether a connection has carried requests before.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ConnectionAge {
    New,
    Reused,
}

/// An answer, and the slots that it holds until it is over.
pub(crate) type UpstreamAnswer = (Response<UpstreamBody>, RequestSlots);

impl Upstream {
    /// An upstream of a route.
    ///
    /// # Errors
    /// As [`Dialer::new`].
    pub(crate) fn new(
        plan: &UpstreamPlan,
        route: &RoutePlan,
        budget: &UpstreamBudget,
        shares: Option<Arc<ClientShares>>,
    ) -> Result<Self, String> {
        let name = plan.target.to_string();
        Ok(Self {
            share: UpstreamWeight::new(&name, plan.weight),
            health: Health::default(),
            metrics: UpstreamMetrics::default(),
            dialer: Dialer::new(&plan.target, route, budget)
                .map_err(|problem| format!("route {:?}: {name}: {problem}", route.name))?,
            timeouts: route.timeouts,
            pool: ConnectionPool::new(ClientShares::new(
                route.connections,
                ClientShares::part(route.connections, route.per_client),
            )),
            tunnels: ClientShares::new(route.tunnels, ClientShares::part(route.tunnels, route.per_client)),
            budget: shares,
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
    pub(crate) async fn send(
        &self,
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
        let (shares, resource) = match outgoing.is_upgrade {
            true => (&self.tunnels, ExhaustedResource::Tunnels),
            false => (&self.pool.requests, ExhaustedResource::Requests),
        };
        let taken = shares.take(outgoing.client, self.timeouts.connect).await;
        let (slot, left) = taken.map_err(|full| UpstreamFailure::full(full, resource))?;
        let shares_connections = self.dialer.is_only_h2() && !outgoing.is_upgrade;
        let Some(budget) = self.budget.as_ref().filter(|_| !shares_connections) else {
            return Ok(((slot, None), left));
        };
        let taken = budget.take(outgoing.client, left).await;
        let (connection_slot, left) =
            taken.map_err(|full| UpstreamFailure::full(full, ExhaustedResource::Connections))?;
        Ok(((slot, Some(Box::new(connection_slot))), left))
    }

    /// Closes idle connections, because new ones are needed and no descriptors are free.
    pub(crate) fn make_room(&self) {
        self.shared.tidy();
        self.pool.clear();
    }

    /// An existing connection.
    fn kept(&self, idle: IdleConnections) -> Option<ConnectionSender> {
        if let Some(h2) = self.shared.one() {
            return Some(ConnectionSender::H2(h2));
        }
        match idle {
            IdleConnections::Allowed => self.pool.take().map(ConnectionSender::Http1),
            IdleConnections::Skipped => None,
        }
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
        &self,
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
        answered.map_err(|unsent| match http2_client::refusal(&unsent) {
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
        &self,
        connection: Box<Http1Connection>,
        outgoing: &Outgoing,
        age: ConnectionAge,
    ) -> Result<Response<UpstreamBody>, UpstreamFailure> {
        let is_reused = age == ConnectionAge::Reused;
        let timeout = self.timeouts.response;
        let asked = InFlightRequest::new(connection, outgoing, timeout).ask(self.authority());
        let (head, connection) = asked.await.map_err(|trouble| match trouble {
            RequestFailure::Late => UpstreamFailure::Late,
            RequestFailure::Unsent(_) if is_reused => UpstreamFailure::Unsent,
            RequestFailure::Gone(_) if is_reused && outgoing.is_repeatable() => UpstreamFailure::Stale,
            RequestFailure::Unsent(why) | RequestFailure::Gone(why) => {
                UpstreamFailure::Lost(Cause::HungUp, why)
            }
            RequestFailure::Lost(cause, why) => UpstreamFailure::Lost(cause, why),
        })?;
        let rest = head.is_kept.then(|| rest(head.response.headers())).flatten();
        let held = outgoing.held.clone();
        let return_path =
            ReturnPath { pool: Arc::clone(&self.pool), client: outgoing.client, rest, held, timeout };
        Ok(head.response.map(|()| UpstreamBody::new(connection, head.body, return_path)))
    }

    /// Runs `sending`, and fails if the deadline passes.
    async fn in_time<F: Future>(
        &self,
        sending: F,
        outgoing: &Outgoing,
    ) -> Result<F::Output, UpstreamFailure> {
        outgoing.upload.in_time(self.timeouts.response, sending).await.ok_or(UpstreamFailure::Late)
    }

    /// Sends a health check on a connection of its own. Returns its status.
    pub(crate) async fn check_health(&self, path: &str) -> Option<StatusCode> {
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
    pub(crate) fn tidy(&self) {
        self.shared.tidy();
        self.pool.tidy();
    }
}

/// Makes a connection within this time.
async fn within(
    timeout: Duration,
    dialing: impl Future<Output = std::io::Result<ConnectionSender>>,
) -> Result<ConnectionSender, UpstreamFailure> {
    match tokio::time::timeout(timeout, dialing).await {
        Ok(dialed) => dialed.map_err(|error| match error.kind() {
            std::io::ErrorKind::QuotaExceeded => UpstreamFailure::Busy(ExhaustedResource::Connections),
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
