//! One upstream: its connections, how many requests may be there at once, and what becomes of one that is sent. Connections of HTTP/1
//! are kept while they rest; one of HTTP/2 serves all requests.

use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::header::{HOST, USER_AGENT};
use http::uri::{Authority, Parts as UriParts, Scheme};
use http::{Request, Response, StatusCode, Uri, Version, request};
use hyper::client::conn::http2;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::answer::{Answered, Home};
use super::body::{Lent, Upload};
use super::fields;
use super::health::Health;
use super::link::{Dialer, Sender};
use super::numbers::UpstreamNumbers;
use super::plan::{RoutePlan, Timeouts, UpstreamPlan};
use super::spread::Share;
use super::wire::{Trouble, Wire};

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

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum Failure {
    /// No connection could be made: nothing was sent.
    Connect(String),
    /// No place was free in time: nothing was sent.
    Busy,
    /// The upstream says that it has not looked at the request.
    Refused,
    /// A connection that had rested ended as the request was sent: the upstream had closed it before, as a rule.
    Stale,
    /// The connection ended before an answer.
    Lost(String),
    /// No answer in time.
    Late,
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
    wire: Box<Wire>,
    until: Instant,
}

/// A request that can be sent more than once.
pub(super) struct Outgoing {
    pub(super) parts: request::Parts,
    pub(super) upload: Upload,
    pub(super) is_upgrade: bool,
}

/// An answer, and the place that it takes until it is over.
pub(super) type Answer = (Response<Answered>, OwnedSemaphorePermit);

impl Upstream {
    /// One of a route.
    ///
    /// # Errors
    /// As [`Dialer::new`].
    pub(super) fn new(
        plan: &UpstreamPlan,
        route: &RoutePlan,
        links: &Arc<Semaphore>,
    ) -> Result<Self, String> {
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
        let (place, left) = self.place().await?;
        if outgoing.is_upgrade {
            if self.dialer.is_only_h2() {
                return Err(Failure::Connect(
                    "it speaks HTTP/2, which knows no upgrades; set protocol: auto".to_owned(),
                ));
            }
            let sender = Box::pin(within(left, self.dialer.dial_http1())).await?;
            return Ok((self.over(sender, outgoing, false).await?, place));
        }
        for _ in 0..STALE_MAX {
            let (sender, has_rested) = match self.kept() {
                Some(sender) => (sender, true),
                None => (Box::pin(self.dialed(left)).await?, false),
            };
            match self.over(sender, outgoing, has_rested).await {
                Err(Failure::Stale) if outgoing.upload.is_whole() => {} // The next one is older, or new.
                sent => return Ok((sent?, place)),
            }
        }
        Err(Failure::Lost("one connection after the other ended".to_owned()))
    }

    /// A place among the requests that may be there at once, and what is left of the time to connect.
    async fn place(&self) -> Result<(OwnedSemaphorePermit, Duration), Failure> {
        let connect = self.timeouts.connect;
        if let Ok(place) = Arc::clone(&self.places).try_acquire_owned() {
            return Ok((place, connect));
        }
        let begun = Instant::now();
        let place = tokio::time::timeout(connect, Arc::clone(&self.places).acquire_owned());
        let place = place.await.map_err(|_| Failure::Busy)?.map_err(|_| Failure::Busy)?;
        Ok((place, connect.saturating_sub(begun.elapsed())))
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
        while let Some(mut kept) = resting.pop() {
            if kept.until > now && kept.wire.is_fit() {
                return Some(Sender::Http1(kept.wire));
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
        let _alone = alone.map_err(|_| Failure::Connect("no connection in time".to_owned()))?;
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

    /// Sends a request on a connection. Boxed is what few requests need and is large, so that what all need is small.
    async fn over(
        self: &Arc<Self>,
        sender: Sender,
        outgoing: &Outgoing,
        has_rested: bool,
    ) -> Result<Response<Answered>, Failure> {
        match sender {
            Sender::Http1(wire) => self.over_wire(wire, outgoing, has_rested).await,
            Sender::H2(sender) => Box::pin(self.over_h2(sender, outgoing, has_rested)).await,
            Sender::Upgrade(mut sender) => {
                Box::pin(async move {
                    let request = outgoing.request(Version::HTTP_11, self.dialer.scheme());
                    let sent = self.in_time(sender.try_send_request(request), outgoing).await?;
                    let answered = sent.map(|response| response.map(Answered::Incoming));
                    answered.map_err(|unsent| Failure::Lost(told(unsent.error())))
                })
                .await
            }
        }
    }

    async fn over_h2(
        &self,
        mut sender: http2::SendRequest<Lent>,
        outgoing: &Outgoing,
        has_rested: bool,
    ) -> Result<Response<Answered>, Failure> {
        let request = outgoing.request(Version::HTTP_2, self.dialer.scheme());
        let sent = self.in_time(sender.try_send_request(request), outgoing).await?;
        let answered = sent.map(|response| response.map(Answered::Incoming));
        answered.map_err(|mut unsent| match unsent.take_message() {
            Some(_) if has_rested => Failure::Stale,
            _ if is_refused(unsent.error()) => Failure::Refused,
            _ => Failure::Lost(told(unsent.error())),
        })
    }

    /// Sends a request on a connection of HTTP/1, which comes back when the answer is over, if both sides want to.
    async fn over_wire(
        self: &Arc<Self>,
        mut wire: Box<Wire>,
        outgoing: &Outgoing,
        has_rested: bool,
    ) -> Result<Response<Answered>, Failure> {
        let asked = wire.ask(&outgoing.parts, &outgoing.upload, self.timeouts.response);
        let head = asked.await.map_err(|trouble| match trouble {
            Trouble::Late => Failure::Late,
            Trouble::Unsent(_) if has_rested => Failure::Stale,
            Trouble::Gone(_) if has_rested && outgoing.is_repeatable() => Failure::Stale,
            Trouble::Unsent(why) | Trouble::Gone(why) | Trouble::Lost(why) => Failure::Lost(why),
        })?;
        let rest = head.is_kept.then(|| rest(head.response.headers())).flatten();
        let home = Home { upstream: Arc::clone(self), rest };
        Ok(head.response.map(|()| Answered::new(wire, head.body, home)))
    }

    /// What comes of sending, as long as either the request moves on or there is time.
    async fn in_time<F: Future>(&self, sending: F, outgoing: &Outgoing) -> Result<F::Output, Failure> {
        let mut sending = std::pin::pin!(sending);
        loop {
            let moved = outgoing.upload.moved();
            match tokio::time::timeout(self.timeouts.response, sending.as_mut()).await {
                Ok(sent) => return Ok(sent),
                Err(_) if outgoing.upload.moved() != moved => {}
                Err(_) => return Err(Failure::Late),
            }
        }
    }

    /// Keeps a connection whose answer is over.
    pub(super) fn keep(&self, wire: Box<Wire>, rest: Duration) {
        let until = Instant::now() + rest;
        let mut resting = self.resting.lock().unwrap_or_else(PoisonError::into_inner);
        if resting.len() >= RESTING_MAX {
            resting.remove(0); // The one that nobody needed for the longest time.
        }
        resting.push(Resting { wire, until });
    }

    /// The status that a check of its health gets, on a connection of its own.
    pub(super) async fn look(self: &Arc<Self>, path: &str) -> Option<StatusCode> {
        let authority = self.name.split_once("://").map_or("", |(_, authority)| authority);
        let request = Request::get(path).header(HOST, authority).header(USER_AGENT, HEALTH_AGENT);
        let (parts, ()) = request.body(()).ok()?.into_parts();
        let outgoing = Outgoing { parts, upload: Upload::empty(), is_upgrade: false };
        match self.dialer.dial().await.ok()? {
            Sender::Http1(mut wire) => {
                let asked = wire.ask(&outgoing.parts, &outgoing.upload, self.timeouts.response);
                Some(asked.await.ok()?.response.status())
            }
            Sender::H2(mut sender) => {
                let request = outgoing.request(Version::HTTP_2, self.dialer.scheme());
                Some(sender.send_request(request).await.ok()?.status())
            }
            Sender::Upgrade(_) => None, // Nobody asked for another protocol.
        }
    }

    /// Closes connections that nobody needed for long enough.
    pub(super) fn tidy(&self) {
        let now = Instant::now();
        let mut resting = self.resting.lock().unwrap_or_else(PoisonError::into_inner);
        resting.retain_mut(|kept| kept.until > now && kept.wire.is_fit());
    }
}

impl Outgoing {
    /// Whether an upstream that may have seen it can be asked again.
    fn is_repeatable(&self) -> bool {
        self.parts.method.is_idempotent() && self.upload.is_empty()
    }

    /// The request as hyper wants it: HTTP/1 names its host in a field, HTTP/2 in the target.
    fn request(&self, version: Version, scheme: Scheme) -> Request<Lent> {
        let mut parts = self.parts.clone();
        parts.version = version;
        if version == Version::HTTP_2 {
            let host = parts.headers.remove(HOST);
            let authority = host.and_then(|host| Authority::try_from(host.as_bytes()).ok());
            let mut uri = UriParts::default();
            uri.path_and_query = parts.uri.path_and_query().cloned();
            // A client of HTTP/1.0 may name none; the target must, then.
            uri.authority = Some(authority.unwrap_or_else(|| Authority::from_static("localhost")));
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
        Ok(dialed) => dialed.map_err(|error| Failure::Connect(told(&error))),
        Err(_) => Err(Failure::Connect("no connection in time".to_owned())),
    }
}

/// Whether an upstream says that it has done nothing about a request.
fn is_refused(error: &hyper::Error) -> bool {
    let source = error.source().and_then(|source| source.downcast_ref::<h2::Error>());
    source.and_then(h2::Error::reason) == Some(h2::Reason::REFUSED_STREAM)
}

/// How long a connection may rest after an answer with these fields.
fn rest(headers: &http::HeaderMap) -> Option<Duration> {
    let granted = fields::kept_for(headers).map(Duration::from_secs);
    let rest = granted.map_or(REST, |granted| granted.saturating_sub(REST_MARGIN).min(REST));
    Some(rest).filter(|rest| !rest.is_zero())
}

/// An error with its causes.
fn told(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}
