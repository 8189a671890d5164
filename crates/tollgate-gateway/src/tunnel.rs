//! Carries another protocol inside a connection. A tunnel begins only when the upstream has answered 101, and then the
//! gateway does not interpret the bytes. Each direction ends by itself, and a slow reader slows the sender. A tunnel
//! with one side gone ends soon.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use http::header::{CONNECTION, HeaderValue, UPGRADE};
use http::{Request, Response, StatusCode, Version};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, sleep};

use crate::body::Limited;
use crate::metrics::Tunnelled;
use crate::upload::Upload;
use crate::upstream_body::RequestSlots;
use crate::websocket::Extended;

/// How long a tunnel may carry nothing. The other end may be gone by then.
const IDLE_TIMEOUT: Duration = Duration::from_secs(3_600);
/// How long it may carry nothing once one side has closed its direction, which usually means that this side has gone.
/// docs/gateway-clients.md promises this time.
const HALF_CLOSED_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum bytes that are read ahead of what was written, in each direction.
const BUFFER_BYTES: usize = 16 << 10;

/// Whether a request asks for a protocol upgrade, and may do so.
fn asks(request: &Request<Upload>) -> bool {
    request.headers().contains_key(UPGRADE)
        && request.body().is_empty()
        && (request.version() == Version::HTTP_11 || request.extensions().get::<Extended>().is_some())
}

/// A request for a protocol upgrade.
pub(crate) struct UpgradeRequest {
    pub(crate) protocol: HeaderValue,
    /// The client's stream inside HTTP/2. An HTTP/1 connection is that stream itself.
    pub(crate) client: Option<OnUpgrade>,
    /// How the upgrade was requested inside HTTP/2.
    pub(crate) extended: Option<Extended>,
}

impl UpgradeRequest {
    /// The upgrade that a request asks for, if it is sent on.
    pub(crate) fn of(request: &mut Request<Upload>) -> Option<Self> {
        let protocol = wanted(request)?;
        let client = match request.version() {
            Version::HTTP_11 => None,
            _ => Some(request.extensions_mut().remove::<OnUpgrade>()?),
        };
        Some(Self { protocol, client, extended: request.extensions_mut().remove() })
    }
}

/// The requested protocol, other than HTTP/2, which the gateway speaks itself.
fn wanted(request: &Request<Upload>) -> Option<HeaderValue> {
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

/// Both ends of a tunnel, and what it holds while it lasts.
pub(crate) struct Tunnel {
    pub(crate) client: Option<OnUpgrade>,
    pub(crate) upstream: OnUpgrade,
    pub(crate) _slots: RequestSlots,
    pub(crate) _counted: Tunnelled,
    /// The body of the answer, which holds the request's permits.
    pub(crate) held: Option<Limited>,
}

/// A tunnel on its way from the code that answers to the task that owns the connection.
#[derive(Clone)]
pub(crate) struct TunnelHandoff(Arc<Mutex<Option<Tunnel>>>);

impl TunnelHandoff {
    /// Adds a tunnel to the answer that begins it.
    pub(crate) fn granted<B>(tunnel: Tunnel, response: &mut Response<B>, protocol: HeaderValue) {
        let headers = response.headers_mut();
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, protocol);
        response.extensions_mut().insert(Self(Arc::new(Mutex::new(Some(tunnel)))));
    }

    /// Takes the tunnel of a response, if it begins one. The tunnel takes over the body and its permits, so that the
    /// request lasts as long as the tunnel.
    pub(crate) fn take(response: &mut Response<Limited>) -> Option<Tunnel> {
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
    /// Carries bytes to and from an HTTP/2 stream until both directions have ended.
    pub(crate) async fn carry(mut self) {
        let Some(client) = self.client.take() else { return };
        let Ok(client) = client.await else { return };
        self.carry_from(TokioIo::new(client)).await;
    }

    /// Carries bytes to and from this client.
    pub(crate) async fn carry_from(self, client: impl AsyncRead + AsyncWrite + Unpin) {
        let Ok(upstream) = self.upstream.await else { return };
        carry_between(client, TokioIo::new(upstream)).await;
    }
}

/// Carries bytes in both directions until both have ended, or nothing moves for too long.
async fn carry_between(
    client: impl AsyncRead + AsyncWrite + Unpin,
    upstream: impl AsyncRead + AsyncWrite + Unpin,
) {
    let watch = Watch::new();
    let mut client = TunnelEnd { stream: client, watch: &watch };
    let mut upstream = TunnelEnd { stream: upstream, watch: &watch };
    let carried =
        tokio::io::copy_bidirectional_with_sizes(&mut client, &mut upstream, BUFFER_BYTES, BUFFER_BYTES);
    let mut carried = pin!(carried);
    let mut timer = pin!(sleep(IDLE_TIMEOUT));
    poll_fn(|context| {
        if let Poll::Ready(carried) = carried.as_mut().poll(context) {
            if let Err(error) = carried {
                tracing::debug!(%error, "a tunnel ended early");
            }
            return Poll::Ready(());
        }
        // The timer is reset only when it fired too early or would fire too late, so a busy tunnel hardly ever resets
        // it.
        let until = watch.until();
        if until < timer.deadline() {
            timer.as_mut().reset(until);
        }
        while timer.as_mut().poll(context).is_ready() {
            if timer.deadline() >= until {
                return Poll::Ready(());
            }
            timer.as_mut().reset(until);
        }
        Poll::Pending
    })
    .await;
}

/// The activity of a tunnel, which both ends record. Relaxed: one task writes and reads it.
struct Watch {
    start: Instant,
    /// The time of the last byte, in milliseconds from the start.
    moved_at: AtomicU64,
    /// Whether one side has closed its direction.
    has_end: AtomicBool,
}

impl Watch {
    fn new() -> Self {
        Self { start: Instant::now(), moved_at: AtomicU64::new(0), has_end: AtomicBool::new(false) }
    }

    /// When the tunnel ends if nothing moves any more.
    fn until(&self) -> Instant {
        let has_end = self.has_end.load(Ordering::Relaxed);
        let timeout = if has_end { HALF_CLOSED_TIMEOUT } else { IDLE_TIMEOUT };
        self.start + Duration::from_millis(self.moved_at.load(Ordering::Relaxed)) + timeout
    }

    fn moved(&self) {
        let since = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.moved_at.store(since, Ordering::Relaxed);
    }
}

/// One end of a tunnel.
struct TunnelEnd<'w, S> {
    stream: S,
    watch: &'w Watch,
}

impl<S: AsyncRead + Unpin> AsyncRead for TunnelEnd<'_, S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let (before, room) = (into.filled().len(), into.remaining());
        let read = Pin::new(&mut this.stream).poll_read(context, into);
        if let Poll::Ready(Ok(())) = &read {
            this.watch.moved();
            let is_end = into.filled().len() == before && room > 0;
            if is_end {
                this.watch.has_end.store(true, Ordering::Relaxed);
            }
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TunnelEnd<'_, S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write(context, bytes);
        if written.is_ready() {
            this.watch.moved();
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A tunnel with one side closed lasts for five seconds without a byte, and as long as bytes come. A tunnel with
    /// both sides open may be silent for an hour.
    #[tokio::test(start_paused = true)]
    async fn a_half_closed_tunnel_ends_soon() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
        for who in ["client", "upstream", "neither"] {
            let ((mut client, near), (mut upstream, far)) = (duplex(64), duplex(64));
            let begun = Instant::now();
            let carried = tokio::spawn(carry_between(near, far));
            let (gone, stays) = match who {
                "upstream" => (&mut upstream, &mut client),
                _ => (&mut client, &mut upstream),
            };
            if who != "neither" {
                gone.shutdown().await.unwrap();
                assert_eq!(stays.read(&mut [0; 8]).await.unwrap(), 0, "the other side hears of it at once");
            }
            for _ in 0..3 {
                tokio::time::sleep(Duration::from_secs(4)).await;
                stays.write_all(b"more").await.unwrap();
                gone.read_exact(&mut [0; 4]).await.unwrap();
            }
            carried.await.unwrap();
            let expected = if who == "neither" { 12 + 3_600 } else { 12 + 5 };
            assert_eq!(begun.elapsed().as_secs(), expected, "{who}");
        }
    }
}
