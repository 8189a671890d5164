//! One connection: how large a request's head may be, how long it may take, and how the connection ends.

use std::convert::Infallible;
use std::sync::Arc;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::patience::{Patient, Phase};
use super::reply::reply;
use crate::listen::{Stop, stopped};
use crate::service::Service;

/// Largest head of a request. hyper's own bound on its fields, 100, is left as it is: saying it again costs an allocation a request.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// Answers the requests of one connection until either side ends it.
pub(crate) async fn connection(stream: TcpStream, service: Arc<Service>, mut stop: Stop) {
    // Without an address there is nobody left to answer.
    let Ok(peer) = stream.peer_addr() else { return };
    let phase = Arc::new(Phase::default());
    let answers = service_fn(|request| {
        let (service, answering) = (Arc::clone(&service), phase.answering());
        async move {
            let response = reply(service.answer(request, peer.ip()).await);
            drop(answering);
            Ok::<_, Infallible>(response)
        }
    });
    let connection = http1::Builder::new()
        // Patience is the stream's; hyper's own would set a timer for each request.
        .header_read_timeout(None)
        .max_buf_size(HEAD_BYTES_MAX)
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
