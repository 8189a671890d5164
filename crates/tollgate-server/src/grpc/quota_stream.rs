//! The stream of one Envoy: reads its reports and sends it changed assignments, until either side ends the stream.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::Either;
use hyper::Request;
use hyper::body::Incoming;
use tokio::sync::{Notify, mpsc};
use tonic::codegen::BoxFuture;
use tonic::codegen::tokio_stream::wrappers::ReceiverStream;
use tonic::server::{Grpc, StreamingService};
use tonic::{Status, Streaming};

use super::connection::CallInProgress;
use super::unary::GrpcReply;
use crate::rlqs::{Bucket, QuotaAssigner, QuotaCodec, Reports, Response, Unusable, Usage};
use crate::service::Service;
use crate::shutdown::{Stop, stopped};

/// The name of the method.
pub(super) const METHOD: &str =
    "/envoy.service.rate_limit_quota.v3.RateLimitQuotaService/StreamRateLimitQuotas";

/// Maximum message size: a report names every bucket of its Envoy.
const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// A stream without reports for this long has no peer any more.
const SILENCE_MAX: Duration = Duration::from_secs(300);
/// How long an Envoy may take to read a message. If it took longer, it would follow an old assignment for too long.
const SEND_TIMEOUT: Duration = Duration::from_secs(1);

/// Answers a call with a stream, which continues after this returns. `begun` marks the call as in progress on the
/// connection.
pub(super) async fn answer(
    assigner: Arc<QuotaAssigner>,
    service: Arc<Service>,
    request: Request<Incoming>,
    stop: Stop,
    begun: CallInProgress,
) -> GrpcReply {
    let call = QuotaCall { assigner, service, stop: Some((stop, begun)) };
    let mut grpc = Grpc::new(QuotaCodec).apply_max_message_size_config(Some(MESSAGE_BYTES_MAX), None);
    grpc.streaming(call, request).await.map(Either::Right)
}

struct QuotaCall {
    assigner: Arc<QuotaAssigner>,
    service: Arc<Service>,
    stop: Option<(Stop, CallInProgress)>,
}

type Answers = ReceiverStream<Result<Response, Status>>;

impl StreamingService<Reports> for QuotaCall {
    type Response = Response;
    type ResponseStream = Answers;
    type Future = BoxFuture<tonic::Response<Answers>, Status>;

    fn call(&mut self, request: tonic::Request<Streaming<Reports>>) -> Self::Future {
        let opened =
            self.stop.take().ok_or_else(|| Status::internal("a call is made once")).and_then(|held| {
                let number = self.assigner.open(&self.service).ok_or_else(|| {
                    Status::resource_exhausted("there are 10,000 streams; close some, or ask another server")
                })?;
                Ok((held, number))
            });
        let (assigner, service) = (Arc::clone(&self.assigner), Arc::clone(&self.service));
        Box::pin(async move {
            let ((stop, begun), (number, wake)) = opened?;
            let (answers, receiver) = mpsc::channel(1);
            let stream = QuotaStream { assigner, service, number, wake, answers, domain: None };
            tokio::spawn(async move {
                stream.run(request.into_inner(), stop).await;
                drop(begun);
            });
            Ok(tonic::Response::new(ReceiverStream::new(receiver)))
        })
    }
}

struct QuotaStream {
    assigner: Arc<QuotaAssigner>,
    service: Arc<Service>,
    number: u64,
    wake: Arc<Notify>,
    answers: mpsc::Sender<Result<Response, Status>>,
    domain: Option<String>,
}

impl Drop for QuotaStream {
    fn drop(&mut self) {
        self.assigner.close(self.number, self.service.now());
    }
}

impl QuotaStream {
    async fn run(mut self, mut reports: Streaming<Reports>, mut stop: Stop) {
        let ended = loop {
            tokio::select! {
                message = tokio::time::timeout(SILENCE_MAX, reports.message()) => match message {
                    Ok(Ok(Some(reports))) => {
                        if let Err(status) = self.report(reports).await {
                            break Some(status);
                        }
                    }
                    Ok(Ok(None)) => break None,
                    Ok(Err(status)) => break Some(status),
                    Err(_) => break Some(Status::deadline_exceeded("nothing was reported for 5 minutes")),
                },
                () = self.wake.notified() => {}
                () = stopped(&mut stop) => {
                    break Some(Status::unavailable("the server stops; assignments hold until they expire"));
                }
            }
            if let Some(response) = self.assigner.take(self.number)
                && self.answers.send_timeout(Ok(response), SEND_TIMEOUT).await.is_err()
            {
                break Some(Status::resource_exhausted("what was assigned was not read within 1 s"));
            }
        };
        if let Some(status) = ended {
            let _ = self.answers.send_timeout(Err(status), SEND_TIMEOUT).await;
        }
    }

    /// Processes a message.
    ///
    /// # Errors
    /// When the message is invalid. The cause is a wrong configuration, and never what clients send.
    async fn report(&mut self, reports: Reports) -> Result<(), Status> {
        if self.service.compat().is_some() {
            return Err(Status::failed_precondition(
                "quotas are assigned by a policy of Tollgate's own, and the active rules are another program's; `tollgate policy convert` makes one of them",
            ));
        }
        let domain = self.domain(&reports.domain)?;
        let mut usages = Vec::with_capacity(reports.usages.len());
        for usage in reports.usages {
            match Bucket::new(usage.bucket_id, &domain) {
                Ok(bucket) => {
                    usages.push((bucket, Usage { allowed: usage.allowed, denied: usage.denied }));
                }
                Err(Unusable::Invalid(reason)) => return Err(Status::invalid_argument(reason)),
                Err(Unusable::NoText) => {} // It cannot be answered, and the others are.
            }
        }
        self.assigner.report(&self.service, self.number, usages).await;
        Ok(())
    }

    /// The domain of the stream, which its first message sets. Envoy repeats it.
    fn domain(&mut self, name: &[u8]) -> Result<String, Status> {
        let name = std::str::from_utf8(name)
            .map_err(|_| Status::invalid_argument("domain: it is no text; send it as UTF-8"))?;
        match &self.domain {
            None if name.is_empty() => Err(Status::invalid_argument(
                "domain: it is empty; the first message of a stream names the domain",
            )),
            None => Ok(self.domain.insert(name.to_owned()).clone()),
            Some(domain) if name.is_empty() || name == domain => Ok(domain.clone()),
            Some(domain) => Err(Status::invalid_argument(format!(
                "domain: it was {domain:?} in the first message; send it again or none, and open another stream for another domain"
            ))),
        }
    }
}
