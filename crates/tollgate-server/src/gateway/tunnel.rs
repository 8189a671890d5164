//! Another protocol inside a connection: it begins only when the upstream has said 101, and then the bytes are nobody's business. Each
//! direction ends by itself, and whoever is slow slows the other side.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use http::header::{CONNECTION, HeaderValue, UPGRADE};
use http::{Request, Response, StatusCode, Version};
use hyper::body::Body;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::OwnedSemaphorePermit;

use super::numbers::Tunnelled;

/// How long a tunnel may carry nothing: nobody may be left at the other end.
const IDLE_TIMEOUT: Duration = Duration::from_secs(3_600);
/// Bytes that are read ahead of what was written, in each direction.
const BUFFER_BYTES: usize = 16 << 10;

/// Whether a request asks for another protocol in a way that the stream waits for the answer, as [`super::framing`] says.
pub(super) fn asks<B: Body>(request: &Request<B>) -> bool {
    request.version() == Version::HTTP_11
        && request.headers().contains_key(UPGRADE)
        && request.body().is_end_stream()
}

/// What a request wants, if it is sent on: another protocol, but for HTTP/2, which the gateway speaks itself.
pub(super) fn wanted<B: Body>(request: &Request<B>) -> Option<HeaderValue> {
    let upgrade = request.headers().get(UPGRADE)?;
    let says_so = request.headers().get_all(CONNECTION).iter().any(|line| {
        let text = line.to_str().unwrap_or_default();
        text.split(',').any(|name| name.trim().eq_ignore_ascii_case("upgrade"))
    });
    let text = upgrade.to_str().ok()?.to_ascii_lowercase();
    let is_http =
        text.split(',').any(|name| name.trim().starts_with("h2") || name.trim().starts_with("http"));
    (asks(request) && says_so && !is_http && !text.is_empty()).then(|| upgrade.clone())
}

/// Both ends of a tunnel, and what it holds as long as it lasts.
pub(super) struct Tunnel {
    pub(super) client: OnUpgrade,
    pub(super) upstream: OnUpgrade,
    pub(super) _place: OwnedSemaphorePermit,
    pub(super) _counted: Tunnelled,
    /// The body of the answer, which holds what the request took of limits.
    pub(super) held: Option<super::Limited>,
}

/// A tunnel on its way from whoever answers to whoever has the connection.
#[derive(Clone)]
pub(super) struct Handed(Arc<Mutex<Option<Tunnel>>>);

impl Handed {
    /// The answer that begins a tunnel.
    pub(super) fn granted<B>(tunnel: Tunnel, response: &mut Response<B>, protocol: HeaderValue) {
        let headers = response.headers_mut();
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, protocol);
        response.extensions_mut().insert(Self(Arc::new(Mutex::new(Some(tunnel)))));
    }

    /// Takes the tunnel of a response, if it begins one, and what its body holds: the request is over when the tunnel is.
    pub(super) fn take(response: &mut Response<super::Limited>) -> Option<Tunnel> {
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return None;
        }
        let handed = response.extensions_mut().remove::<Self>()?;
        let mut tunnel = handed.0.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        tunnel.held = Some(std::mem::take(response.body_mut()));
        Some(tunnel)
    }
}

impl Tunnel {
    /// Carries bytes until both directions have ended.
    pub(super) async fn carry(self) {
        let (Ok(client), Ok(upstream)) = tokio::join!(self.client, self.upstream) else { return };
        let moved = AtomicU64::new(0);
        let mut client = Counting { stream: TokioIo::new(client), moved: &moved };
        let mut upstream = TokioIo::new(upstream);
        let carried =
            tokio::io::copy_bidirectional_with_sizes(&mut client, &mut upstream, BUFFER_BYTES, BUFFER_BYTES);
        let mut carried = std::pin::pin!(carried);
        loop {
            let before = moved.load(Ordering::Relaxed);
            match tokio::time::timeout(IDLE_TIMEOUT, carried.as_mut()).await {
                Ok(Err(error)) => return tracing::debug!(%error, "a tunnel ended early"),
                Ok(Ok(_)) => return,
                Err(_) if moved.load(Ordering::Relaxed) == before => return,
                Err(_) => {}
            }
        }
    }
}

/// A stream that counts how often something moved. Relaxed: it is read by the task that writes it.
struct Counting<'c, S> {
    stream: S,
    moved: &'c AtomicU64,
}

impl<S: AsyncRead + Unpin> AsyncRead for Counting<'_, S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let read = Pin::new(&mut this.stream).poll_read(context, into);
        if read.is_ready() {
            this.moved.fetch_add(1, Ordering::Relaxed);
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Counting<'_, S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write(context, bytes);
        if written.is_ready() {
            this.moved.fetch_add(1, Ordering::Relaxed);
        }
        written
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}
