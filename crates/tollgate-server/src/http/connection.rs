//! One connection: the size and time limits of a request head, and how the connection ends.

use std::convert::Infallible;
use std::sync::Arc;

use http_body_util::Either;
use hyper::Request;
use hyper::body::Incoming;
use hyper::header::{CONNECTION, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;

use super::handler::answer;
use super::reply::reply;
use crate::control::ControlPlane;
use crate::control::admin::{self, AdminClient, web_console};
use crate::listen::{Phase, Stream, TimedStream, serve_lingering};
use crate::protocol::Protocol;
use crate::shutdown::Stop;
use crate::telemetry::trace::parent::Parent;

/// Maximum size of a request head. hyper's own limit of 100 headers is left alone: setting it again costs an allocation
/// per request.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// Answers the requests of one connection until either side ends it.
pub(crate) async fn connection(stream: Stream, control: Arc<ControlPlane>, stop: Stop) {
    // Without a peer address the client is gone already.
    let Ok(peer) = stream.peer_addr().map(|peer| peer.ip()) else { return };
    let _open = control.service.meter.opened(Protocol::Http);
    let phase = Arc::new(Phase::default());
    // Each answer borrows these. Its own handles would cost reference counting for each request.
    let (asked, phase_now, stop_now) = (&control, &phase, &stop);
    let answers = service_fn(move |request: Request<Incoming>| {
        let (control, stop, answering) = (asked, stop_now, phase_now.answering());
        async move {
            // The rare path is boxed, because the future of each request reserves space for every path.
            let is_admin = request.uri().path().starts_with(admin::PREFIX);
            if is_admin || web_console::owns(request.uri().path()) {
                let asker =
                    AdminClient { peer: Some(peer), stop: stop.clone(), answering: Box::new(answering) };
                return Ok(match is_admin {
                    true => Box::pin(admin::respond(control, request, asker)).await,
                    false => Box::pin(web_console::respond(control, request, asker)).await,
                });
            }
            let answered = match Parent::of(request.headers()) {
                Some(parent) => Box::pin(parent.scope(answer(control, request, peer))).await,
                None => answer(control, request, peer).await,
            };
            let mut response = reply(answered).map(Either::Left);
            if *stop.borrow() {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            drop(answering);
            Ok::<_, Infallible>(response)
        }
    });
    let connection = http1::Builder::new()
        // The stream enforces timeouts. hyper's own would set a timer for each request.
        .header_read_timeout(None)
        .max_buf_size(HEAD_BYTES_MAX)
        // A client may close its sending side, and still wait for the answer.
        .half_close(true)
        .serve_connection(TokioIo::new(TimedStream::new(stream, Arc::clone(&phase))), answers);
    if let Err(error) = serve_lingering(connection, &phase, stop.clone()).await {
        tracing::debug!(%error, "a connection ended early");
    }
}
