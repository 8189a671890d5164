//! One connection of a client: its protocol, its bounds, how long it may be idle, and how it ends.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};

use crate::arrival::Peer;
use crate::entry::Prefixed;
use crate::frames::Paced;
use crate::gateway::Gateway;
use crate::http1_server;
use crate::listen::{HEAD_TIMEOUT, Stream};
use crate::request_body::RequestBody;
use crate::shutdown::{Stop, stopped};
use crate::streams::{ActiveBody, State, Streams};
use crate::tunnel::TunnelHandoff;
use crate::websocket;

/// The first bytes of an HTTP/2 client.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Maximum concurrent requests on one HTTP/2 connection.
const STREAMS_MAX: u32 = 128;
/// Largest head of a request.
const FIELDS_BYTES_MAX: u32 = 16 << 10;
/// Maximum streams that a client may reset before the server handles them, and that the server may reset because of a
/// client's errors.
const PENDING_RESETS_MAX: usize = 20;
const ERROR_RESETS_MAX: usize = 64;
/// Bytes that a client may send ahead of what the upstream takes, per request and per connection.
const STREAM_WINDOW_BYTES: u32 = 256 << 10;
const CONNECTION_WINDOW_BYTES: u32 = 1 << 20;
/// Maximum bytes of an answer that are buffered for a client.
const SEND_BUFFER_BYTES: usize = 64 << 10;
/// Interval of pings to the client, and the time that it has to answer one.
const PING_INTERVAL: Duration = Duration::from_secs(20);
const PING_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval at which the requests of an HTTP/2 connection are checked for activity.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Maximum time for a graceful close when no request is in flight.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Serves one connection until either side ends it.
pub async fn connection(stream: Stream, gateway: Arc<Gateway>, mut stop: Stop) {
    // A socket without a peer address is already closed.
    let Ok(address) = stream.peer_addr().map(|peer| peer.ip()) else { return };
    let peer = Peer { address, is_secure: stream.is_secure() };
    let _open = gateway.program.opened();
    let is_h2 = stream.agreed().map(|agreed| agreed == b"h2");
    let mut stream = Prefixed::new(stream);
    let is_h2 = match is_h2 {
        Some(is_h2) => is_h2,
        None => {
            // A client that connected before the server stopped may have sent a request already.
            let stops = async {
                stopped(&mut stop).await;
                tokio::time::sleep(http1_server::LINGER).await;
            };
            let begins = tokio::select! {
                biased;
                begins = tokio::time::timeout(HEAD_TIMEOUT, stream.begins_with(PREFACE)) => begins,
                () = stops => return,
            };
            match begins {
                Ok(Ok(is_h2)) => is_h2,
                Ok(Err(_)) | Err(_) => return,
            }
        }
    };
    // The large future is boxed, so that an idle connection is small.
    if is_h2 {
        Box::pin(serve_h2(stream, gateway, peer, stop)).await
    } else {
        http1_server::serve(stream, gateway, peer, stop).await
    }
}

async fn serve_h2(stream: Prefixed, gateway: Arc<Gateway>, peer: Peer, mut stop: Stop) {
    let streams = Arc::new(Streams::new(stream.stream.activity()));
    let service = service_fn(|request: Request<Incoming>| {
        let (gateway, active) = (Arc::clone(&gateway), streams.begin());
        async move {
            let mut response = gateway.answer(request.map(RequestBody::Incoming), peer).await;
            if let Some(tunnel) = TunnelHandoff::take(&mut response) {
                websocket::turn_back(&mut response);
                let open = active.again();
                tokio::spawn(async move {
                    let _open = open; // The connection is not idle as long as the tunnel lasts.
                    tunnel.carry().await;
                });
            }
            active.polled(&Poll::Ready(()));
            Ok::<_, Infallible>(response.map(|body| ActiveBody { body, request: active }))
        }
    });
    let mut connection = pin!(builder().serve_connection(TokioIo::new(Paced::before(stream)), service));
    let mut looking = tokio::time::interval(LOOK_EVERY);
    let ended = loop {
        tokio::select! {
            ended = connection.as_mut() => break Some(ended),
            () = stopped(&mut stop) => {
                connection.as_mut().graceful_shutdown();
                break if streams.is_idle() {
                    tokio::time::timeout(CLOSE_TIMEOUT, connection).await.ok()
                } else {
                    Some(connection.await)
                };
            }
            _ = looking.tick() => match streams.state() {
                State::Busy => {}
                State::Idle => {
                    connection.as_mut().graceful_shutdown();
                    break tokio::time::timeout(CLOSE_TIMEOUT, connection).await.ok();
                }
                State::Stalled => {
                    tracing::debug!("a client does not take its answer, and is given up");
                    gateway.proxy.slow.reader();
                    break None;
                }
            },
        }
    };
    if let Some(Err(error)) = ended {
        tracing::debug!(%error, "a connection ended early");
    }
}

fn builder() -> http2::Builder<TokioExecutor> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .enable_connect_protocol()
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(FIELDS_BYTES_MAX)
        .max_pending_accept_reset_streams(PENDING_RESETS_MAX)
        .max_local_error_reset_streams(ERROR_RESETS_MAX)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_send_buf_size(SEND_BUFFER_BYTES)
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT);
    builder
}
