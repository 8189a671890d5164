//! One connection of a client: what is spoken on it, what it may take of the machine, how long it may rest, and how it ends.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::header::{CONNECTION, HeaderValue};
use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};

use super::arrival::Peer;
use super::body::{Body, Holding, Watched};
use super::entry::{Lingering, Prefixed};
use super::frames::Paced;
use super::streams::{State, Streams};
use super::strict::{Strict, Turn};
use super::tunnel::{self, Handed, Tunnel};
use super::{Gateway, HEAD_BUFFER_BYTES};
use crate::http::{Answering, HEAD_TIMEOUT, Patient, Phase};
use crate::listen::{Stop, Stream, stopped};

/// How a client of HTTP/2 begins.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// How long a connection waits, once the server was told to stop, for a request that its client has sent already.
const LINGER: Duration = Duration::from_secs(1);

/// Most requests at once on one connection of HTTP/2.
const STREAMS_MAX: u32 = 128;
/// Largest head of one.
const FIELDS_BYTES_MAX: u32 = 16 << 10;
/// Streams that a client may reset before they are begun, and that the server may reset because of a client's errors.
const PENDING_RESETS_MAX: usize = 20;
const ERROR_RESETS_MAX: usize = 64;
/// Bytes that a client may send ahead of what the upstream takes, for a request and for all of a connection.
const STREAM_WINDOW_BYTES: u32 = 256 << 10;
const CONNECTION_WINDOW_BYTES: u32 = 1 << 20;
/// Bytes of an answer that wait for a client to take them.
const SEND_BUFFER_BYTES: usize = 64 << 10;
/// How often to ask whether the client is there, and how long it may take to say so.
const PING_INTERVAL: Duration = Duration::from_secs(20);
const PING_TIMEOUT: Duration = Duration::from_secs(10);
/// How often it is looked at what the requests of a connection of HTTP/2 are doing.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// How long closing in good order may take where no request is under way.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Serves one connection until either side ends it.
pub(crate) async fn connection(stream: Stream, gateway: Arc<Gateway>, mut stop: Stop) {
    // Without an address there is nobody left to answer.
    let Ok(address) = stream.peer_addr().map(|peer| peer.ip()) else { return };
    let peer = Peer { address, is_secure: stream.is_secure() };
    let _open = gateway.opened();
    let is_h2 = stream.agreed().map(|agreed| agreed == b"h2");
    let mut stream = Prefixed::new(stream);
    let is_h2 = match is_h2 {
        Some(is_h2) => is_h2,
        None => {
            let looked = tokio::select! {
                looked = tokio::time::timeout(HEAD_TIMEOUT, stream.begins_with(PREFACE)) => looked,
                () = stopped(&mut stop) => return, // Nothing was asked yet, so nobody waits for an answer.
            };
            match looked {
                Ok(Ok(is_h2)) => is_h2,
                Ok(Err(_)) | Err(_) => return,
            }
        }
    };
    if is_h2 {
        serve_h2(stream, gateway, peer, stop).await
    } else {
        serve_http1(stream, gateway, peer, stop).await
    }
}

async fn serve_http1(stream: Prefixed, gateway: Arc<Gateway>, peer: Peer, stop: Stop) {
    let (phase, turn) = (Arc::new(Phase::default()), Arc::new(Turn::default()));
    let mut told = stop.clone();
    let tunnel = Arc::new(Mutex::new(None::<Tunnel>));
    let service = service_fn(|request: Request<Incoming>| {
        let (gateway, answering, stop) = (Arc::clone(&gateway), phase.answering(), stop.clone());
        let (phase, tunnel) = (Arc::clone(&phase), Arc::clone(&tunnel));
        let underway = Underway { _answering: answering, turn: Arc::clone(&turn) };
        let asked = tunnel::asks(&request).then(|| Arc::clone(&turn).asked());
        async move {
            let mut response = gateway.answer(request, peer).await;
            let begun = Handed::take(&mut response);
            if let (Some(asked), Some(_)) = (&asked, &begun) {
                asked.grant();
            }
            drop(asked);
            if begun.is_some() {
                phase.leave();
                *tunnel.lock().unwrap_or_else(PoisonError::into_inner) = begun;
            } else if *stop.borrow() || must_close(&response) {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, Infallible>(response.map(|body| Holding { body, held: underway }.boxed_unsync()))
        }
    });
    let stream = Lingering::before(stream, Arc::clone(&phase));
    let stream = Patient::new(stream, Arc::clone(&phase));
    let stream = Strict::before(stream, Arc::clone(&turn), Arc::clone(&phase));
    let connection = http1::Builder::new()
        // Patience is the stream's.
        .header_read_timeout(None)
        .max_buf_size(HEAD_BUFFER_BYTES)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stopped(&mut told) => match tokio::time::timeout(LINGER, connection.as_mut()).await {
            Ok(ended) => ended,
            Err(_) => {
                if !phase.is_touched() {
                    return; // A connection opened ahead of need; nobody waits for an answer.
                }
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        },
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended early");
    }
    let tunnel = tunnel.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(tunnel) = tunnel {
        tunnel.carry().await;
    }
}

/// Whether what is left of a request is of no use: it was refused for how it is written, or its body did not come.
fn must_close(response: &Response<Body>) -> bool {
    matches!(response.status().as_u16(), 408 | 414 | 431)
        && response.extensions().get::<super::Own>().is_some()
}

/// A request of HTTP/1 that is being answered. The next one, if it is there already, is read when this is over.
struct Underway {
    _answering: Answering,
    turn: Arc<Turn>,
}

impl Drop for Underway {
    fn drop(&mut self) {
        // The task that is woken is the one that runs this: it looks when both fields are gone.
        self.turn.wake();
    }
}

impl Watched for Underway {
    fn polled(&mut self, _is_ready: bool) {}
}

async fn serve_h2(stream: Prefixed, gateway: Arc<Gateway>, peer: Peer, mut stop: Stop) {
    let streams = Arc::new(Streams::new());
    let service = service_fn(|request: Request<Incoming>| {
        let (gateway, mut pulse) = (Arc::clone(&gateway), streams.begin());
        async move {
            let response = gateway.answer(request, peer).await;
            pulse.polled(true);
            Ok::<_, Infallible>(response.map(|body| Holding { body, held: pulse }.boxed_unsync()))
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
