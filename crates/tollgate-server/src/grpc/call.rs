//! One call: its method, its size and time limits, and the only conversion of an unanswerable request into a gRPC
//! status.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::Either;
use hyper::Request;
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, HeaderValue};
use tonic::Status;
use tonic::codegen::Service as _;
use tonic_health::ServingStatus;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::{HealthReporter, HealthService};

use super::codec::{self, DecodedRequest, unreadable};
use super::connection::CallInProgress;
use super::quota_stream::{self, METHOD};
use super::unary::{self, GrpcReply, Unread};
use crate::envoy_api::{QUOTA_SERVICE, RATE_LIMIT_SERVICE, RateLimitResponse};
use crate::lazy_timeout::lazy_timeout;
use crate::log_throttle::LogThrottle;
use crate::protocol::Protocol;
use crate::rlqs::QuotaAssigner;
use crate::rls::Unanswerable;
use crate::service::{Service, rls};
use crate::shutdown::Stop;
use crate::telemetry::Open;
use crate::telemetry::trace::parent::Parent;

/// Maximum message size. By default Envoy accepts 60 KiB of headers from a client, and descriptors are made of them.
const MESSAGE_BYTES_MAX: usize = 256 << 10;
/// Maximum size of a health request, which contains the name of a service.
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
    unreadable: LogThrottle,
    quotas: Arc<QuotaAssigner>,
}

impl Calls {
    /// Answers with this service, and reports it as healthy. Health does not depend on the store: while the store is
    /// unreachable, each limit's failure mode decides.
    pub(crate) async fn new(service: Arc<Service>) -> Self {
        let reporter = HealthReporter::new();
        reporter.set_service_status(RATE_LIMIT_SERVICE, ServingStatus::Serving).await;
        let health = HealthServer::new(HealthService::from_health_reporter(reporter.clone()))
            .max_decoding_message_size(HEALTH_BYTES_MAX);
        reporter.set_service_status(QUOTA_SERVICE, ServingStatus::Serving).await;
        let quotas = Arc::new(QuotaAssigner::new());
        let watched = Arc::downgrade(&quotas);
        service
            .meter
            .probe(move |now| watched.upgrade().map_or_else(Vec::new, |assigner| assigner.samples(now)));
        Self { service, reporter, health, unreadable: LogThrottle::default(), quotas }
    }

    /// Counts an opened connection.
    pub(super) fn opened(&self) -> Open {
        self.service.meter.opened(Protocol::Rls)
    }

    /// Answers one call.
    pub(super) async fn answer(&self, request: Request<Incoming>) -> GrpcReply {
        let answered = match Parent::of(request.headers()) {
            Some(parent) => Box::pin(lazy_timeout(CALL_TIMEOUT, parent.scope(self.route(request)))).await,
            None => lazy_timeout(CALL_TIMEOUT, self.route(request)).await,
        };
        answered.unwrap_or_else(|| {
            unary::failure(Status::deadline_exceeded(
                "the call took more than 10 s to arrive; send its message at once",
            ))
        })
    }

    /// Answers a streaming call.
    pub(super) async fn stream(
        &self,
        request: Request<Incoming>,
        stop: Stop,
        begun: CallInProgress,
    ) -> GrpcReply {
        if let Some(reply) = self.unauthenticated(&request) {
            return reply;
        }
        if let Some(reply) = unary::no_call(request.method(), request.headers()) {
            return reply;
        }
        let (assigner, service) = (Arc::clone(&self.quotas), Arc::clone(&self.service));
        Box::pin(quota_stream::answer(assigner, service, request, stop, begun)).await
    }

    /// The answer to a caller without a valid token.
    fn unauthenticated(&self, request: &Request<Incoming>) -> Option<GrpcReply> {
        let token = request.headers().get(AUTHORIZATION).map(HeaderValue::as_bytes);
        (!self.service.auth.admits_header(token)).then(|| {
            unary::failure(Status::unauthenticated(
                "a token is needed; send it as metadata, `authorization: Bearer TOKEN`",
            ))
        })
    }

    async fn route(&self, request: Request<Incoming>) -> GrpcReply {
        let is_health = request.uri().path().starts_with(HEALTH);
        if !is_health && let Some(reply) = self.unauthenticated(&request) {
            return reply;
        }
        match request.uri().path() {
            SHOULD_RATE_LIMIT => self.should_rate_limit(request).await,
            path if path.starts_with(HEALTH) => match Box::pin(self.health.clone().call(request)).await {
                Ok(response) => response.map(Either::Right),
                Err(never) => match never {},
            },
            _ => unary::failure(Status::unimplemented(format!(
                "no such method; there are {SHOULD_RATE_LIMIT}, {METHOD}, and {HEALTH}Check and Watch"
            ))),
        }
    }

    async fn should_rate_limit(&self, request: Request<Incoming>) -> GrpcReply {
        if let Some(reply) = unary::no_call(request.method(), request.headers()) {
            return reply;
        }
        let message = match unary::message(request.into_body(), MESSAGE_BYTES_MAX).await {
            Ok(message) => message,
            Err(Unread::TooLarge) => return unary::reply(&self.refuse("it is too large")),
            Err(Unread::Compressed) => return unary::compressed(),
            Err(Unread::Malformed(reason)) => return unary::failure(Status::internal(reason)),
        };
        let rls_request = match codec::read(message) {
            DecodedRequest::Readable(rls_request) => rls_request,
            DecodedRequest::Unreadable => {
                let reason = "it is no message of Envoy's, or has text that is not UTF-8";
                return unary::reply(&self.refuse(reason));
            }
        };
        match rls::answer(&self.service, &rls_request, self.service.now()).await {
            Ok(answer) => unary::reply(&RateLimitResponse::from(answer)),
            Err(Unanswerable::Invalid(reason)) => unary::failure(Status::invalid_argument(reason)),
        }
    }

    fn refuse(&self, reason: &str) -> RateLimitResponse {
        if let Some(skipped) = self.unreadable.due(self.service.now()) {
            tracing::warn!(skipped, "a question cannot be read, so the request is over the limit: {reason}");
        }
        self.service.meter.record_fault(Protocol::Rls);
        unreadable()
    }

    /// Reports to health checks and watchers that calls should go elsewhere. Calls that still arrive are answered.
    pub(crate) async fn turn_away(&self) {
        for name in ["", RATE_LIMIT_SERVICE, QUOTA_SERVICE] {
            self.reporter.clone().set_service_status(name, ServingStatus::NotServing).await;
        }
    }

    /// Reports to watchers that the service ends, and closes their streams.
    pub(super) async fn retire(&self) {
        let mut reporter = self.reporter.clone();
        for name in ["", RATE_LIMIT_SERVICE, QUOTA_SERVICE] {
            reporter.set_service_status(name, ServingStatus::NotServing).await;
            reporter.clear_service_status(name).await;
        }
    }
}
