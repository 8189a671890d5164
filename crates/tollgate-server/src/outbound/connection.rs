//! One connection of a client. Its answer counts as in progress until the last byte of its body, since a provider may pause
//! within a stream.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::Request;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::header::{CONNECTION, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tollgate_gateway::listen::Answering;

use super::proxy::{OutboundProxy, ProxyBody};
use crate::listen::{Phase, Stream, TimedStream, serve_lingering};
use crate::shutdown::Stop;
use crate::telemetry::Open;

/// Maximum size of a request head.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// Answers the requests of one connection until either side ends it, and counts it as open until then. A client that
/// leaves takes its call out of the queue.
pub(crate) async fn connection(stream: Stream, proxy: Arc<OutboundProxy>, _open: Open, stop: Stop) {
    let scheme = if stream.is_secure() { "https" } else { "http" };
    let phase = Arc::new(Phase::at(stream.activity()));
    let (asked, phase_now, stop_now) = (&proxy, &phase, &stop);
    let answers = service_fn(move |request: Request<Incoming>| {
        let answering = phase_now.answering();
        async move {
            let mut response = asked.answer(request, scheme).await;
            if *stop_now.borrow() {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, Infallible>(response.map(|body| AnsweringBody { body, _answering: answering }))
        }
    });
    let connection = http1::Builder::new()
        // The stream enforces timeouts.
        .header_read_timeout(None)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(TimedStream::new(stream, Arc::clone(&phase))), answers);
    if let Err(error) = serve_lingering(connection, &phase, stop.clone()).await {
        tracing::debug!(%error, "a connection of the outbound proxy ended early");
    }
}

/// A body, and the mark that its connection is in use.
struct AnsweringBody {
    body: ProxyBody,
    _answering: Answering,
}

impl Body for AnsweringBody {
    type Data = Bytes;
    type Error = <ProxyBody as Body>::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
