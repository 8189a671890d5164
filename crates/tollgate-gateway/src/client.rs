//! Requests of the program's own to one server, on connections as the gateway makes them: kept, over HTTP/1.1 or HTTP/2,
//! with or without TLS. Nothing is retried here: the failure says whether the server can have seen the request.

use std::fmt;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Context;
use std::time::Duration;

use bytes::Bytes;
use http::header::EXPECT;
use http::{Request, Response, Version};
use hyper::body::{Body, Incoming, SizeHint};

use crate::body::Download;
use crate::cause::{BodyError, FramePoll};
use crate::failure::UpstreamFailure;
use crate::fields;
use crate::listen::{Pace, UpstreamBudget};
use crate::outgoing::Outgoing;
use crate::plan::{self, RoutePlan, Timeouts};
use crate::request_body::RequestBody;
use crate::shares::ShareOwner;
use crate::target::Target;
use crate::upload::Upload;
use crate::upstream::{IdleConnections, Upstream};

/// One client has all slots of its server.
const ALL: u32 = 100;

/// A server, and how long its parts of an exchange may take.
#[derive(Clone, Debug)]
pub struct ClientPlan {
    /// Its name in logs.
    pub name: String,
    /// Where it is.
    pub target: Target,
    /// Until there is a connection.
    pub connect: Duration,
    /// Until the answer begins, counted from the last byte that was sent.
    pub response: Duration,
    /// The CA of its certificate; by default those of the system.
    pub ca: Option<PathBuf>,
    /// Maximum number of requests in flight.
    pub connections: usize,
}

impl ClientPlan {
    /// How many requests may be in flight if a config does not say it.
    pub const CONNECTIONS: usize = plan::CONNECTIONS;
    /// Maximum value of [`connections`](Self::connections) in a config.
    pub const CONNECTIONS_MAX: usize = plan::CONNECTIONS_MAX;
}

/// Sends requests to one server. Clones share its connections.
#[derive(Clone)]
pub struct UpstreamClient(Arc<ClientShared>);

struct ClientShared {
    upstream: Upstream,
    idle: Duration,
}

/// The body of such a request.
#[derive(Debug)]
pub enum ClientRequestBody {
    /// All of it is here.
    Whole(Bytes),
    /// It is passed on as it comes.
    Stream(Incoming),
}

/// The body of an answer, passed on as it comes.
pub struct ClientResponseBody(Download);

/// Why there is no answer.
#[derive(Debug)]
pub enum ClientFailure {
    /// Nothing was sent, or the server says that it has not looked at it.
    NotSent(String),
    /// The server may have acted on the request.
    Unanswered(String),
    /// As `Unanswered`, because no answer came in time.
    Late(String),
}

impl fmt::Display for ClientFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotSent(details) => write!(f, "the request was not sent: {details}"),
            Self::Unanswered(details) | Self::Late(details) => {
                write!(f, "the request was sent, and {details}")
            }
        }
    }
}

impl std::error::Error for ClientFailure {}

impl UpstreamClient {
    /// A client of one server. `links` limits its connections.
    ///
    /// # Errors
    /// When the CA cannot be read, or the host is no name that a certificate can have.
    pub fn new(plan: &ClientPlan, links: &UpstreamBudget) -> Result<Self, String> {
        let timeouts = Timeouts { connect: plan.connect, response: plan.response, ..Timeouts::default() };
        let route = RoutePlan {
            name: plan.name.clone(),
            timeouts,
            per_client: ALL,
            connections: plan.connections,
            ca: plan.ca.clone(),
            ..RoutePlan::of_flag(&plan.target)
        };
        let upstream = route.upstreams.first().ok_or("it has no server")?;
        let upstream = Upstream::new(upstream, &route, links, None)?;
        Ok(Self(Arc::new(ClientShared { upstream, idle: timeouts.idle })))
    }

    /// Sends a request once, and waits for the head of its answer. Its target is a path, and `Host` names the server
    /// ([`Target::authority`]). Fields that belong to one connection are removed, from the answer as well. A server that
    /// ends a connection without an answer may have counted the request, so only the caller sends it again.
    ///
    /// # Errors
    /// When no answer comes.
    pub async fn send(
        &self,
        request: Request<ClientRequestBody>,
    ) -> Result<Response<ClientResponseBody>, ClientFailure> {
        let shared = &self.0;
        let (mut parts, body) = request.into_parts();
        fields::drop_hops(&mut parts.headers);
        parts.headers.remove(EXPECT); // The body is sent at once.
        parts.extensions.clear();
        let body = match body {
            ClientRequestBody::Whole(bytes) => RequestBody::from(bytes),
            ClientRequestBody::Stream(incoming) => RequestBody::Incoming(incoming),
        };
        let upload = Upload::new(body, None, Pace::idle(shared.idle));
        let outgoing = Outgoing { parts, upload, is_upgrade: false, client: ShareOwner::Many, held: None };
        let sent = shared.upstream.send(&outgoing, IdleConnections::Allowed).await;
        let (mut response, slots) = sent.map_err(|failure| ClientFailure::of(&failure))?;
        outgoing.upload.answered();
        *response.version_mut() = Version::HTTP_11;
        let framed = "its answer is framed in a way that is not read here";
        fields::of_response(response.headers_mut())
            .ok_or_else(|| ClientFailure::Unanswered(framed.to_owned()))?;
        let idle = shared.idle;
        Ok(response.map(|body| ClientResponseBody(Download { body, idle, waiting: None, _slots: slots })))
    }

    /// Closes connections that were idle for too long.
    pub fn tidy(&self) {
        self.0.upstream.tidy();
    }
}

impl ClientFailure {
    fn of(failure: &UpstreamFailure) -> Self {
        let details = failure.to_string();
        match failure {
            UpstreamFailure::Connect(..)
            | UpstreamFailure::Busy(_)
            | UpstreamFailure::Share(_)
            | UpstreamFailure::Refused
            | UpstreamFailure::Left
            | UpstreamFailure::Unsent => Self::NotSent(details),
            UpstreamFailure::Stale | UpstreamFailure::Lost(..) => Self::Unanswered(details),
            UpstreamFailure::Late => Self::Late(details),
        }
    }
}

impl Body for ClientResponseBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> FramePoll {
        Pin::new(&mut self.0).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}
