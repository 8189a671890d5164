//! One call: which method it is, how large and how slow it may be, and the one place where a question that cannot be answered
//! becomes a gRPC status.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitResponse;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::SERVICE_NAME;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::{Request, Response};
use prost::Message;
use tonic::body::Body;
use tonic::codegen::Service as _;
use tonic::metadata::GRPC_CONTENT_TYPE;
use tonic::server::{Grpc, UnaryService};
use tonic::{Code, Status};
use tonic_health::ServingStatus;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::{HealthReporter, HealthService};

use super::codec::{Asked, RateLimitCodec, unreadable};
use crate::rls::{self, Unanswerable};
use crate::seldom::Seldom;
use crate::service::{Service, Wire};
use crate::telemetry::Open;
use crate::telemetry::trace::parent::Parent;
use crate::within::within;

/// Largest message. Envoy takes 60 KiB of headers from a client unless told otherwise, and descriptors are made of them.
const MESSAGE_BYTES_MAX: usize = 256 << 10;
/// Largest question about health: the name of a service.
const HEALTH_BYTES_MAX: usize = 4 << 10;
/// How long a call may take to arrive and be answered. Callers give up after milliseconds.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const HEALTH: &str = "/grpc.health.v1.Health/";

/// Answers calls.
pub(crate) struct Calls {
    service: Arc<Service>,
    reporter: HealthReporter,
    health: HealthServer<HealthService>,
    unreadable: Seldom,
}

impl Calls {
    /// Answers by this service, which is then reported to be in good health. That does not depend on its store: a store that
    /// is away is answered for by each limit's own failure mode.
    pub(crate) async fn new(service: Arc<Service>) -> Self {
        let reporter = HealthReporter::new();
        reporter.set_service_status(SERVICE_NAME, ServingStatus::Serving).await;
        let health = HealthServer::new(HealthService::from_health_reporter(reporter.clone()))
            .max_decoding_message_size(HEALTH_BYTES_MAX);
        Self { service, reporter, health, unreadable: Seldom::default() }
    }

    /// A connection was opened.
    pub(super) fn opened(&self) -> Open {
        self.service.meter.opened(Wire::Rls)
    }

    /// Answers one call.
    pub(super) async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        let answered = match Parent::of(request.headers()) {
            Some(parent) => Box::pin(within(CALL_TIMEOUT, parent.scope(self.route(request)))).await,
            None => within(CALL_TIMEOUT, self.route(request)).await,
        };
        answered.unwrap_or_else(|| {
            Status::deadline_exceeded("the call took more than 10 s to arrive; send its message at once")
                .into_http()
        })
    }

    async fn route(&self, request: Request<Incoming>) -> Response<Body> {
        let is_health = request.uri().path().starts_with(HEALTH);
        let token = request.headers().get(AUTHORIZATION).map(HeaderValue::as_bytes);
        if !is_health && !self.service.auth.admits_header(token) {
            return Status::unauthenticated(
                "a token is needed; send it as metadata, `authorization: Bearer TOKEN`",
            )
            .into_http();
        }
        match request.uri().path() {
            SHOULD_RATE_LIMIT => self.should_rate_limit(request).await,
            path if path.starts_with(HEALTH) => match self.health.clone().call(request).await {
                Ok(response) => response,
                Err(never) => match never {},
            },
            _ => Status::unimplemented(format!(
                "no such method; there are {SHOULD_RATE_LIMIT} and {HEALTH}Check and Watch"
            ))
            .into_http(),
        }
    }

    async fn should_rate_limit(&self, request: Request<Incoming>) -> Response<Body> {
        let method = ShouldRateLimit(self);
        let mut grpc = Grpc::new(RateLimitCodec).max_decoding_message_size(MESSAGE_BYTES_MAX);
        let response = grpc.unary(method, request).await;
        if is_too_large(&response) {
            return over_limit(&self.refuse("it is too large"));
        }
        response
    }

    async fn decide(&self, asked: Asked) -> Result<RateLimitResponse, Status> {
        let question = match asked {
            Asked::Readable(question) => question,
            Asked::Unreadable => {
                return Ok(self.refuse("it is no message of Envoy's, or has text that is not UTF-8"));
            }
        };
        match rls::answer(&self.service, &question, self.service.now()).await {
            Ok(answer) => Ok(answer.into()),
            Err(Unanswerable::Invalid(reason)) => Err(Status::invalid_argument(reason)),
        }
    }

    fn refuse(&self, reason: &str) -> RateLimitResponse {
        if let Some(skipped) = self.unreadable.due(self.service.now()) {
            tracing::warn!(skipped, "a question cannot be read, so the request is over the limit: {reason}");
        }
        self.service.meter.record_fault(Wire::Rls);
        unreadable()
    }

    /// Tells whoever asks or watches that calls should go elsewhere; those that come are answered.
    pub(crate) async fn turn_away(&self) {
        for name in ["", SERVICE_NAME] {
            self.reporter.clone().set_service_status(name, ServingStatus::NotServing).await;
        }
    }

    /// Tells whoever watches that the service ends, and lets them go.
    pub(super) async fn retire(&self) {
        let mut reporter = self.reporter.clone();
        for name in ["", SERVICE_NAME] {
            reporter.set_service_status(name, ServingStatus::NotServing).await;
            reporter.clear_service_status(name).await;
        }
    }
}

/// The method, for as long as one call takes.
struct ShouldRateLimit<'c>(&'c Calls);

impl<'c> UnaryService<Asked> for ShouldRateLimit<'c> {
    type Response = RateLimitResponse;
    type Future =
        Pin<Box<dyn Future<Output = Result<tonic::Response<RateLimitResponse>, Status>> + Send + 'c>>;

    fn call(&mut self, request: tonic::Request<Asked>) -> Self::Future {
        let calls = self.0;
        Box::pin(async move { calls.decide(request.into_inner()).await.map(tonic::Response::new) })
    }
}

/// Whether this is what tonic answers to a message above the bound, which it does not read.
fn is_too_large(response: &Response<Body>) -> bool {
    let told = response.headers().get(Status::GRPC_STATUS);
    told.is_some_and(|told| Code::from_bytes(told.as_bytes()) == Code::OutOfRange)
}

/// A whole response with this message, for a call whose message was never read.
fn over_limit(message: &RateLimitResponse) -> Response<Body> {
    let encoded = message.encode_to_vec();
    let mut frame = BytesMut::with_capacity(5 + encoded.len());
    frame.put_u8(0); // Not compressed.
    frame.put_u32(u32::try_from(encoded.len()).unwrap_or(u32::MAX));
    frame.put_slice(&encoded);
    let trailers = HeaderMap::from_iter([(Status::GRPC_STATUS, HeaderValue::from_static("0"))]);
    let body = Full::new(Bytes::from(frame)).with_trailers(std::future::ready(Some(Ok(trailers))));
    let mut response = Response::new(Body::new(body));
    response.headers_mut().insert(CONTENT_TYPE, GRPC_CONTENT_TYPE);
    response
}
