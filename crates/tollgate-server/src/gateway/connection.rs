//! One connection of a client: what is spoken on it, what it may take of the machine, how long it may rest, and how it ends.

use std::convert::Infallible;
use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use http::header::{CONNECTION, HeaderValue};
use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

use super::arrival::Peer;
use super::body::{Body, Holding, Watched};
use super::frames::Paced;
use super::strict::{Strict, Turn};
use super::tunnel::{self, Handed, Tunnel};
use super::{Gateway, HEAD_BUFFER_BYTES};
use crate::http::{Answering, HEAD_TIMEOUT, Patient, Phase, WRITE_TIMEOUT};
use crate::listen::{Stop, Stream, stopped};

/// How a client of HTTP/2 begins.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// How long a connection waits, once the server was told to stop, for a request that its client has sent already.
const LINGER: Duration = Duration::from_secs(1);

/// How long an answer is awaited for a client that has ended its side.
const END_GRACE: Duration = Duration::from_secs(2);

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
/// How long a connection of HTTP/2 may last without a request, and how often that is looked at.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
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
    let mut stream = Prefixed { prefix: Vec::new(), stream };
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
        let (turn, phase, tunnel) = (Arc::clone(&turn), Arc::clone(&phase), Arc::clone(&tunnel));
        async move {
            let asks = tunnel::asks(&request);
            let mut response = gateway.answer(request, peer).await;
            let begun = Handed::take(&mut response);
            if asks {
                turn.decide(begun.is_some());
            }
            if begun.is_some() {
                phase.leave();
                *tunnel.lock().unwrap_or_else(PoisonError::into_inner) = begun;
            } else if *stop.borrow() || must_close(&response) {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, Infallible>(response.map(|body| Holding { body, held: answering }.boxed_unsync()))
        }
    });
    let stream = Lingering { stream, phase: Arc::clone(&phase), waiting: None };
    let stream = Strict::new(Patient::new(stream, Arc::clone(&phase)), Arc::clone(&turn));
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

impl Watched for Answering {
    fn polled(&mut self, _is_ready: bool) {}
}

async fn serve_h2(stream: Prefixed, gateway: Arc<Gateway>, peer: Peer, mut stop: Stop) {
    let streams = Arc::new(Streams::new());
    let service = service_fn(|request: Request<Incoming>| {
        let (gateway, pulse) = (Arc::clone(&gateway), streams.begin());
        async move {
            let response = gateway.answer(request, peer).await;
            pulse.0.polled(true);
            Ok::<_, Infallible>(response.map(|body| Holding { body, held: pulse }.boxed_unsync()))
        }
    });
    let mut connection = pin!(builder().serve_connection(TokioIo::new(Paced::new(stream)), service));
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

/// What the requests of a connection of HTTP/2 are doing.
enum State {
    Busy,
    /// There was none for long enough.
    Idle,
    /// A client does not take one of its answers.
    Stalled,
}

/// The requests of a connection of HTTP/2.
struct Streams {
    start: Instant,
    /// When the last one began or ended. Relaxed, as all here: times that are looked at every few seconds.
    moved_at: AtomicU64,
    /// Locked when one begins, and for a look.
    open: Mutex<Vec<Weak<Pulse>>>,
}

/// One request: when its body was last asked for more, and whether it had any.
struct Pulse {
    start: Instant,
    polled_at: AtomicU64,
    /// Whether the upstream is awaited, rather than the client.
    awaits_upstream: AtomicBool,
}

/// A request that has begun; its connection hears of it until this is dropped.
struct Begun(Arc<Pulse>, Arc<Streams>);

impl Streams {
    fn new() -> Self {
        Self { start: Instant::now(), moved_at: AtomicU64::new(0), open: Mutex::default() }
    }

    fn begin(self: &Arc<Self>) -> Begun {
        let pulse = Arc::new(Pulse {
            start: self.start,
            polled_at: AtomicU64::new(0),
            awaits_upstream: AtomicBool::new(true),
        });
        self.moved();
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|pulse| pulse.strong_count() > 0);
        open.push(Arc::downgrade(&pulse));
        Begun(pulse, Arc::clone(self))
    }

    fn moved(&self) {
        self.moved_at.store(millis(self.start), Ordering::Relaxed);
    }

    fn is_idle(&self) -> bool {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.iter().all(|pulse| pulse.strong_count() == 0)
    }

    fn state(&self) -> State {
        let now = millis(self.start);
        if self.is_idle() {
            let since = now.saturating_sub(self.moved_at.load(Ordering::Relaxed));
            return if Duration::from_millis(since) > IDLE_TIMEOUT { State::Idle } else { State::Busy };
        }
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let is_stalled = |pulse: Arc<Pulse>| {
            let since = now.saturating_sub(pulse.polled_at.load(Ordering::Relaxed));
            !pulse.awaits_upstream.load(Ordering::Relaxed) && Duration::from_millis(since) > WRITE_TIMEOUT
        };
        if open.iter().filter_map(Weak::upgrade).any(is_stalled) { State::Stalled } else { State::Busy }
    }
}

fn millis(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX)
}

impl Pulse {
    fn polled(&self, is_ready: bool) {
        self.awaits_upstream.store(!is_ready, Ordering::Relaxed);
        self.polled_at.store(millis(self.start), Ordering::Relaxed);
    }
}

impl Watched for Begun {
    fn polled(&mut self, is_ready: bool) {
        self.0.polled(is_ready);
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        self.1.moved();
    }
}

/// A stream whose client may say that it has no more to ask, and still wait for the answer, for a moment. Who has gone away says
/// the same, and must not keep an upstream busy.
struct Lingering {
    stream: Prefixed,
    phase: Arc<Phase>,
    waiting: Option<Pin<Box<Sleep>>>,
}

impl AsyncRead for Lingering {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.waiting.is_none() {
            let before = into.filled().len();
            let read = Pin::new(&mut this.stream).poll_read(context, into);
            let is_end = matches!(read, Poll::Ready(Ok(()))) && into.filled().len() == before;
            if !is_end || !this.phase.is_answering() {
                return read;
            }
        }
        // The end, while an answer is awaited: it is told when nobody awaits one, or some time has passed.
        let waiting = this.waiting.get_or_insert_with(|| Box::pin(sleep(END_GRACE)));
        if this.phase.is_answering() && waiting.as_mut().poll(context).is_pending() {
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Lingering {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

/// A stream of which some bytes were read before anybody knew what they are.
struct Prefixed {
    prefix: Vec<u8>,
    stream: Stream,
}

impl Prefixed {
    /// Whether the first bytes are these. Reads no more than it takes to know.
    async fn begins_with(&mut self, wanted: &[u8]) -> io::Result<bool> {
        let mut bytes = [0; PREFACE.len()];
        while self.prefix.len() < wanted.len() {
            let left = wanted.len() - self.prefix.len();
            let read = self.stream.read(&mut bytes[..left]).await?;
            self.prefix.extend_from_slice(&bytes[..read]);
            if read == 0 || !wanted.starts_with(&self.prefix) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl AsyncRead for Prefixed {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.prefix.is_empty() {
            return Pin::new(&mut this.stream).poll_read(context, into);
        }
        let taken = this.prefix.len().min(into.remaining());
        into.put_slice(&this.prefix[..taken]);
        this.prefix.drain(..taken);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Prefixed {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
