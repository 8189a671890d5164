//! One connection: how large a request's head may be, how long it may take, and how the connection ends.

use std::convert::Infallible;
use std::sync::Arc;

use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};

use super::patience::{IDLE_TIMEOUT, Patient, Phase};
use super::reply::reply;
use crate::listen::{Stop, Stream, stopped};
use crate::service::{Service, Wire};
use crate::telemetry::trace::parent::Parent;

/// Largest head of a request, and most fields in it.
const HEAD_BYTES_MAX: usize = 16 << 10;
const HEAD_FIELDS_MAX: usize = 100;

/// Answers the requests of one connection until either side ends it.
pub(crate) async fn connection(stream: Stream, service: Arc<Service>, mut stop: Stop) {
    // Without an address there is nobody left to answer.
    let Ok(peer) = stream.peer_addr() else { return };
    let _open = service.meter.opened(Wire::Http);
    let phase = Arc::new(Phase::default());
    let answers = service_fn(|request: Request<Incoming>| {
        let (service, answering) = (Arc::clone(&service), phase.answering());
        let parent = Parent::of(request.headers());
        async move {
            let response = reply(Parent::scope(parent, service.answer(request, peer.ip())).await);
            drop(answering);
            Ok::<_, Infallible>(response)
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        // The shorter patience with a head that has begun is the stream's; this one only stands behind it.
        .header_read_timeout(IDLE_TIMEOUT)
        .max_buf_size(HEAD_BYTES_MAX)
        .max_headers(HEAD_FIELDS_MAX)
        .serve_connection(TokioIo::new(Patient::new(stream, Arc::clone(&phase))), answers);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stopped(&mut stop) => {
            if !phase.is_touched() {
                return; // A connection opened ahead of need; nobody waits for an answer.
            }
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended early");
    }
}
