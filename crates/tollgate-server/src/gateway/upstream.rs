//! One upstream: its connections, how many requests may be there at once, and what becomes of one that is sent. Connections of HTTP/1
//! are kept while they rest; one of HTTP/2 serves all requests.

use std::error::Error;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::header::{CONNECTION, HOST, HeaderValue, TE, TRANSFER_ENCODING, USER_AGENT};
use http::uri::{Authority, Parts as UriParts, Scheme};
use http::{Request, Response, StatusCode, Uri, Version, request};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::body::{Lent, Upload};
use super::cause::{Cause, details};
use super::fields;
use super::health::Health;
use super::link::{Dialer, Sender};
use super::numbers::UpstreamNumbers;
use super::plan::{RoutePlan, Timeouts, UpstreamPlan};
use super::spread::Share;
use crate::listen::Links;

/// How long a connection may rest, unless the upstream says less.
const REST: Duration = Duration::from_secs(30);
/// What is left of the time that an upstream grants, so that both do not end a connection at one instant.
const REST_MARGIN: Duration = Duration::from_secs(1);
/// Most connections that rest.
const RESTING_MAX: usize = 256;

/// How many connections that had rested may turn out to have ended before a request is given up.
const STALE_MAX: usize = RESTING_MAX + 2;

/// What a check of health calls itself.
const HEALTH_AGENT: &str = concat!("tollgate-health/", env!("CARGO_PKG_VERSION"));

/// Why there is no answer: what clients are told of it, and what the log is.
#[derive(Debug)]
pub(super) enum Failure {
    /// No connection could be made: nothing was sent.
    Connect(Cause, String),
    /// No place was free in time: nothing was sent.
    Busy,
    /// The upstream says that it has not looked at the request.
    Refused,
    /// A connection that had rested ended as the request was sent: the upstream had closed it before, as a rule.
    Stale,
    /// The connection ended before an answer.
    Lost(Cause, String),
    /// No answer in time.
    Late,
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Connect(_, details) => write!(formatter, "no connection: {details}"),
            Failure::Busy => formatter.write_str("no place was free in time"),
            Failure::Refused => formatter.write_str("it was refused unseen"),
            Failure::Stale => formatter.write_str("a connection that had rested has ended"),
            Failure::Lost(_, details) => write!(formatter, "it was lost: {details}"),
            Failure::Late => formatter.write_str("no answer in time"),
        }
    }
}

/// An upstream.
pub(super) struct Upstream {
    pub(super) name: String,
    pub(super) share: Share,
    pub(super) health: Health,
    pub(super) numbers: UpstreamNumbers,
    dialer: Dialer,
    timeouts: Timeouts,
    places: Arc<Semaphore>,
    /// Connections of HTTP/1 that rest, the last used last. Locked to push and to pop.
    resting: Mutex<Vec<Resting>>,
    /// The connection of HTTP/2. Locked to look at it; a task that makes one holds the other lock.
    shared: Mutex<Option<http2::SendRequest<Lent>>>,
    dialing: tokio::sync::Mutex<()>,
}

struct Resting {
    sender: http1::SendRequest<Lent>,
    until: Instant,
}

/// A request that can be sent more than once.
pub(super) struct Outgoing {
    pub(super) parts: request::Parts,
    pub(super) upload: Upload,
    pub(super) is_upgrade: bool,
}

/// An answer, and the place that it takes until it is over.
pub(super) type Answer = (Response<Incoming>, OwnedSemaphorePermit);

impl Upstream {
    /// One of a route.
    ///
    /// # Errors
    /// As [`Dialer::new`].
    pub(super) fn new(plan: &UpstreamPlan, route: &RoutePlan, links: &Links) -> Result<Self, String> {
        let name = plan.target.to_string();
        Ok(Self {
            share: Share::new(&name, plan.weight),
            health: Health::default(),
            numbers: UpstreamNumbers::default(),
            dialer: Dialer::new(&plan.target, route, links)
                .map_err(|problem| format!("route {:?}: {name}: {problem}", route.name))?,
            timeouts: route.timeouts,
            places: Arc::new(Semaphore::new(route.connections)),
            resting: Mutex::default(),
            shared: Mutex::default(),
            dialing: tokio::sync::Mutex::default(),
            name,
        })
    }

    /// Sends a request, and waits for the head of its answer.
    ///
    /// # Errors
    /// When there is none; the failure says whether the upstream may have seen the request.
    pub(super) async fn send(self: &Arc<Self>, outgoing: &Outgoing) -> Result<Answer, Failure> {
        let connect = self.timeouts.connect;
        let begun = Instant::now();
        let place = tokio::time::timeout(connect, Arc::clone(&self.places).acquire_owned());
        let place = place.await.map_err(|_| Failure::Busy)?.map_err(|_| Failure::Busy)?;
        let left = connect.saturating_sub(begun.elapsed());
        if outgoing.is_upgrade {
            if self.dialer.is_only_h2() {
                let details = "it speaks HTTP/2, which knows no upgrades; set protocol: auto".to_owned();
                return Err(Failure::Connect(Cause::Protocol, details));
            }
            let sender = within(left, self.dialer.dial_http1()).await?;
            return Ok((self.over(sender, outgoing, false).await?, place));
        }
        for _ in 0..STALE_MAX {
            let (sender, has_rested) = match self.kept() {
                Some(sender) => (sender, true),
                None => (self.dialed(left).await?, false),
            };
            match self.over(sender, outgoing, has_rested).await {
                Err(Failure::Stale) if outgoing.upload.is_whole() => {} // The next one is older, or new.
                sent => return Ok((sent?, place)),
            }
        }
        Err(Failure::Lost(Cause::HungUp, "one connection after the other ended".to_owned()))
    }

    /// What it is called where a client does not say: host and port.
    fn authority(&self) -> &str {
        self.name.split_once("://").map_or("", |(_, authority)| authority)
    }

    /// A connection that is there already.
    fn kept(&self) -> Option<Sender> {
        let shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = shared.as_ref().filter(|sender| !sender.is_closed()) {
            return Some(Sender::H2(sender.clone()));
        }
        drop(shared);
        let now = Instant::now();
        let mut resting = self.resting.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(kept) = resting.pop() {
            if kept.until > now && kept.sender.is_ready() {
                return Some(Sender::Http1(kept.sender));
            }
        }
        None
    }

    /// A new connection. Where all share one, the first that needs it makes it.
    async fn dialed(&self, patience: Duration) -> Result<Sender, Failure> {
        if !self.dialer.is_only_h2() {
            return self.keep_shared(within(patience, self.dialer.dial()).await?);
        }
        let begun = Instant::now();
        let alone = tokio::time::timeout(patience, self.dialing.lock()).await;
        let _alone = alone.map_err(|_| too_slow())?;
        if let Some(sender) = self.kept() {
            return Ok(sender);
        }
        let left = patience.saturating_sub(begun.elapsed());
        self.keep_shared(within(left, self.dialer.dial()).await?)
    }

    fn keep_shared(&self, sender: Sender) -> Result<Sender, Failure> {
        if let Sender::H2(sender) = &sender {
            *self.shared.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender.clone());
        }
        Ok(sender)
    }

    /// Sends a request on a connection.
    async fn over(
        self: &Arc<Self>,
        sender: Sender,
        outgoing: &Outgoing,
        has_rested: bool,
    ) -> Result<Response<Incoming>, Failure> {
        let version = match sender {
            Sender::Http1(_) => Version::HTTP_11,
            Sender::H2(_) => Version::HTTP_2,
        };
        let request = outgoing.request(version, self.dialer.scheme(), self.authority());
        let is_repeatable = outgoing.parts.method.is_idempotent() && outgoing.upload.is_empty();
        match sender {
            Sender::H2(mut sender) => {
                let sent = self.in_time(sender.try_send_request(request), outgoing).await?;
                sent.map_err(|mut unsent| match unsent.take_message() {
                    Some(_) if has_rested => Failure::Stale,
                    _ if is_refused(unsent.error()) => Failure::Refused,
                    _ => lost(unsent.error()),
                })
            }
            Sender::Http1(mut sender) => {
                let sent = self.in_time(sender.try_send_request(request), outgoing).await?;
                let mut unsent = match sent {
                    Ok(response) => {
                        if !outgoing.is_upgrade {
                            self.rest(sender, &response);
                        }
                        return Ok(response);
                    }
                    Err(unsent) => unsent,
                };
                // One that is given back was not sent at all; any other may have been read.
                let is_unseen = unsent.take_message().is_some() || is_repeatable && is_gone(unsent.error());
                Err(if has_rested && is_unseen { Failure::Stale } else { lost(unsent.error()) })
            }
        }
    }

    /// What comes of sending, if it does in time.
    async fn in_time<F: Future>(&self, sending: F, outgoing: &Outgoing) -> Result<F::Output, Failure> {
        outgoing.upload.in_time(self.timeouts.response, sending).await.ok_or(Failure::Late)
    }

    /// Keeps a connection once its answer is over, if both sides want to.
    fn rest(self: &Arc<Self>, mut sender: http1::SendRequest<Lent>, response: &Response<Incoming>) {
        let granted = fields::kept_for(response.headers()).map(Duration::from_secs);
        let rest = granted.map_or(REST, |granted| granted.saturating_sub(REST_MARGIN).min(REST));
        let upstream = Arc::clone(self);
        tokio::spawn(async move {
            if rest.is_zero() || sender.ready().await.is_err() {
                return;
            }
            let until = Instant::now() + rest;
            let mut resting = upstream.resting.lock().unwrap_or_else(PoisonError::into_inner);
            if resting.len() >= RESTING_MAX {
                resting.remove(0); // The one that nobody needed for the longest time.
            }
            resting.push(Resting { sender, until });
        });
    }

    /// The status that a check of its health gets, on a connection of its own.
    pub(super) async fn look(self: &Arc<Self>, path: &str) -> Option<StatusCode> {
        let request = Request::get(path).header(USER_AGENT, HEALTH_AGENT);
        let (parts, ()) = request.body(()).ok()?.into_parts();
        let outgoing = Outgoing { parts, upload: Upload::empty(), is_upgrade: false };
        let sender = self.dialer.dial().await.ok()?;
        let response = match sender {
            Sender::Http1(mut sender) => {
                let request = outgoing.request(Version::HTTP_11, self.dialer.scheme(), self.authority());
                sender.send_request(request).await
            }
            Sender::H2(mut sender) => {
                let request = outgoing.request(Version::HTTP_2, self.dialer.scheme(), self.authority());
                sender.send_request(request).await
            }
        };
        response.ok().map(|response| response.status())
    }

    /// Closes connections that nobody needed for long enough.
    pub(super) fn tidy(&self) {
        let now = Instant::now();
        let mut resting = self.resting.lock().unwrap_or_else(PoisonError::into_inner);
        resting.retain(|kept| kept.until > now && kept.sender.is_ready());
    }
}

impl Outgoing {
    /// The request as a connection wants it: HTTP/1 names its host in a field, HTTP/2 in the target. A client of HTTP/1.0 or HTTP/2 may
    /// name none; a server is asked by its own name then, since it must be asked by one.
    fn request(&self, version: Version, scheme: Scheme, authority: &str) -> Request<Lent> {
        let mut parts = self.parts.clone();
        parts.version = version;
        if !parts.headers.contains_key(HOST)
            && let Ok(host) = HeaderValue::from_str(authority)
        {
            parts.headers.insert(HOST, host);
        }
        if version == Version::HTTP_11 && parts.headers.contains_key(TE) && !self.is_upgrade {
            // In HTTP/1 the wish is one hop's, and says so.
            parts.headers.insert(CONNECTION, HeaderValue::from_static("te"));
        }
        if version == Version::HTTP_11 && !self.upload.is_empty() && !self.upload.is_measured() {
            // hyper takes it that GET and HEAD have no body, and drops one of unknown length, unless it is told.
            parts.headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
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
        Request::from_parts(parts, self.upload.lend())
    }
}

/// A connection, within this time.
async fn within(
    patience: Duration,
    dialing: impl Future<Output = std::io::Result<Sender>>,
) -> Result<Sender, Failure> {
    match tokio::time::timeout(patience, dialing).await {
        Ok(dialed) => dialed.map_err(|error| Failure::Connect(Cause::of_connecting(&error), details(&error))),
        Err(_) => Err(too_slow()),
    }
}

fn too_slow() -> Failure {
    Failure::Connect(Cause::Slow, "none in time".to_owned())
}

/// Whether an upstream says that it has done nothing about a request.
fn is_refused(error: &hyper::Error) -> bool {
    let source = error.source().and_then(|source| source.downcast_ref::<h2::Error>());
    source.and_then(h2::Error::reason) == Some(h2::Reason::REFUSED_STREAM)
}

/// Whether a connection ended without a byte of an answer.
fn is_gone(error: &hyper::Error) -> bool {
    let source = error.source().and_then(|source| source.downcast_ref::<std::io::Error>());
    let is_reset = source.is_some_and(|error| {
        matches!(error.kind(), std::io::ErrorKind::ConnectionReset | std::io::ErrorKind::BrokenPipe)
    });
    error.is_incomplete_message() || error.is_closed() || error.is_canceled() || is_reset
}

fn lost(error: &hyper::Error) -> Failure {
    Failure::Lost(Cause::of_asking(error), details(error))
}
