//! HTTP/2 connections to one upstream. Each carries as many concurrent requests as the upstream allows; beyond that,
//! another connection is made.

use std::error::Error;
use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;

use crate::upload::UploadBody;

/// Bytes that an upstream may send ahead of what a client reads, per answer and per connection.
const STREAM_WINDOW_BYTES: u32 = 256 << 10;
const CONNECTION_WINDOW_BYTES: u32 = 4 << 20;
/// Maximum bytes of a request that are buffered on one stream.
const SEND_BUFFER_BYTES: usize = 128 << 10;
/// Interval of pings to an upstream, and the time that it has to answer one.
const PING_INTERVAL: Duration = Duration::from_secs(20);
const PING_TIMEOUT: Duration = Duration::from_secs(10);
/// Sentinel for the stream limit until the upstream's first SETTINGS frame, which contains the real one.
const UNSAID: usize = 65_521;
/// How long, and at which interval, a new connection waits for it.
const SAYING: Duration = Duration::from_millis(500);
const LOOK: Duration = Duration::from_millis(1);
/// Maximum connections. When all of them are full, requests wait on the one with the fewest requests.
const CONNECTIONS_MAX: usize = 16;

/// One connection, which several requests share.
#[derive(Clone)]
pub(crate) struct H2 {
    pub(crate) sender: SendRequest<UploadBody>,
    /// How many concurrent requests the upstream allows.
    most: Arc<AtomicUsize>,
    /// Its reference count, less the one in the list, is the number of requests.
    streams: Arc<()>,
}

/// A request's share in a connection, until its answer is over.
pub(crate) type StreamShare = Arc<()>;

/// All connections to the upstream.
#[derive(Default)]
pub(crate) struct SharedConnections(Mutex<Vec<H2>>);

impl SharedConnections {
    /// Returns a connection with a free stream, or a full one only when there can be no further connection.
    pub(crate) fn one(&self) -> Option<H2> {
        let mut kept = self.lock();
        kept.retain(|h2| !h2.sender.is_closed());
        let is_crowded = kept.len() >= CONNECTIONS_MAX;
        let least = kept.iter().min_by_key(|h2| h2.in_flight())?;
        (least.has_place() || is_crowded).then(|| least.clone())
    }

    /// Adds a connection that other requests may use, too.
    pub(crate) fn keep(&self, h2: &H2) {
        self.lock().push(h2.clone());
    }

    /// Removes a connection whose upstream accepts no further requests on it. Those in flight go on.
    pub(crate) fn leave(&self, stream: &StreamShare) {
        self.lock().retain(|kept| !Arc::ptr_eq(&kept.streams, stream));
    }

    /// Sends a request, and holds no sender while it waits for the answer. If the connection ends, hyper returns a
    /// request that was queued. But if its sender was just queueing it, hyper does so only when the last sender is
    /// gone. A request that held its own sender would wait for itself.
    pub(crate) fn send(
        &self,
        mut h2: H2,
        request: Request<UploadBody>,
    ) -> impl Future<Output = Result<Response<Incoming>, TrySendError<Request<UploadBody>>>> + use<> {
        let sending = h2.sender.try_send_request(request);
        if h2.sender.is_closed() {
            self.leave(&h2.streams);
        }
        sending
    }

    /// Drops connections that have ended, and all but one of the idle ones.
    pub(crate) fn tidy(&self) {
        let mut idle = 0;
        self.lock().retain(|h2| {
            idle += usize::from(h2.in_flight() == 0);
            !h2.sender.is_closed() && (h2.in_flight() > 0 || idle <= 1)
        });
    }

    fn lock(&self) -> MutexGuard<'_, Vec<H2>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl H2 {
    /// Starts HTTP/2 on a new connection. Returns once the upstream has sent its limit of concurrent requests.
    ///
    /// # Errors
    /// When the upstream does not speak HTTP/2.
    pub(crate) async fn new(
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        head_bytes_max: usize,
    ) -> io::Result<Self> {
        let mut builder = Builder::new(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .initial_max_send_streams(UNSAID)
            .max_header_list_size(u32::try_from(head_bytes_max).unwrap_or(u32::MAX))
            .max_send_buf_size(SEND_BUFFER_BYTES)
            .keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT);
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
        let until = Instant::now() + SAYING;
        while connection.current_max_send_streams() == UNSAID && !sender.is_closed() && Instant::now() < until
        {
            tokio::time::sleep(LOOK).await; // hyper's task reads the connection, and sends no notification.
        }
        let most = Arc::new(AtomicUsize::new(connection.current_max_send_streams()));
        let limit = Arc::clone(&most);
        tokio::spawn(async move {
            let mut connection = pin!(connection);
            let driven = poll_fn(|context| {
                let polled = connection.as_mut().poll(context);
                // The upstream may change its limit at any time.
                limit.store(connection.current_max_send_streams(), Ordering::Relaxed);
                polled
            });
            if let Err(error) = driven.await {
                tracing::debug!(%error, "a connection to an upstream ended early");
            }
        });
        Ok(Self { sender, most, streams: Arc::default() })
    }

    /// A share in this connection for one request.
    pub(crate) fn stream(&self) -> StreamShare {
        Arc::clone(&self.streams)
    }

    /// How many requests are in flight or about to be.
    fn in_flight(&self) -> usize {
        Arc::strong_count(&self.streams).saturating_sub(1)
    }

    fn has_place(&self) -> bool {
        self.in_flight() < self.most.load(Ordering::Relaxed).max(1)
    }
}

/// A request that an upstream refused without processing it: the upstream says so, or never got it.
pub(crate) enum RefusedRequest {
    /// This request.
    One,
    /// All further requests on the connection, the last ones included.
    Connection,
}

/// Classifies an error as a refusal, if it is one.
pub(crate) fn refusal(unsent: &TrySendError<Request<UploadBody>>) -> Option<RefusedRequest> {
    let error = unsent.error();
    // hyper still has the request, or dropped it while it waited for a stream on a connection that ended.
    if unsent.message().is_some() || error.is_user() {
        return Some(RefusedRequest::Connection);
    }
    let error = error.source()?.downcast_ref::<h2::Error>()?;
    match error.reason()? {
        // The reason does not matter: h2 reports this for requests after the last one that the upstream has processed.
        _ if error.is_go_away() && error.is_remote() => Some(RefusedRequest::Connection),
        h2::Reason::REFUSED_STREAM => Some(RefusedRequest::One),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    /// A connection to an upstream that allows this many concurrent requests.
    async fn connected(most: u32) -> H2 {
        let (near, far) = tokio::io::duplex(1 << 16);
        let answer = hyper::service::service_fn(|_| async {
            Ok::<_, Infallible>(http::Response::new(http_body_util::Empty::<bytes::Bytes>::new()))
        });
        tokio::spawn(async move {
            let mut builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            builder.max_concurrent_streams(most);
            let _ = builder.serve_connection(TokioIo::new(far), answer).await;
        });
        H2::new(near, 64 << 10).await.unwrap()
    }

    /// Requests share a connection up to the upstream's limit, and a finished one makes it available again.
    #[tokio::test]
    async fn a_connection_has_as_many_places_as_the_upstream_says() {
        let shared = SharedConnections::default();
        shared.keep(&connected(2).await);
        let first = shared.one().unwrap();
        let (_first, second) = (first.stream(), first.stream());
        drop(first);
        assert!(shared.one().is_none(), "both places are taken");
        drop(second);
        let third = shared.one().unwrap();
        assert_eq!(third.most.load(Ordering::Relaxed), 2);
        shared.leave(&third.stream());
        drop(third);
        assert!(shared.one().is_none(), "a closed connection is not used again");
    }

    /// At the maximum number of connections, the one with the fewest requests takes more.
    #[tokio::test]
    async fn a_crowd_shares_what_there_is() {
        let shared = SharedConnections::default();
        let mut taken = Vec::new();
        for number in 0..CONNECTIONS_MAX {
            shared.keep(&connected(1).await);
            let h2 = shared.one().unwrap();
            taken.push(h2.stream());
            drop(h2);
            assert_eq!(shared.one().is_some(), number + 1 == CONNECTIONS_MAX);
        }
        drop(taken);
        shared.tidy();
        assert_eq!(shared.lock().len(), 1, "of those that rest one stays");
    }
}
