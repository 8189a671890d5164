//! A connection's stream, the same type with TLS and without, so that every protocol accepts either. To a client and to
//! an upstream it differs only in what it holds.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio_rustls::TlsStream;

use super::connection_table::ConnectionActivity;

/// A connection. It holds `H` while it is open: that to a client its entry in the connection limit, which records whether
/// it is used.
#[derive(Debug)]
pub struct Stream<H = Arc<ConnectionActivity>> {
    transport: Transport,
    held: H,
}

/// A connection to an upstream, with its permit among the connections to all upstreams.
pub(crate) type UpstreamStream = Stream<OwnedSemaphorePermit>;

#[derive(Debug)]
enum Transport {
    /// Without TLS.
    Plain(TcpStream),
    /// Inside TLS. Boxed: it is much larger.
    Tls(Box<TlsStream<TcpStream>>),
}

impl<H> Stream<H> {
    /// A connection without TLS.
    #[must_use]
    pub const fn plain(stream: TcpStream, held: H) -> Self {
        Self { transport: Transport::Plain(stream), held }
    }

    /// A connection after its TLS handshake, on either side.
    #[must_use]
    pub fn secure(stream: impl Into<TlsStream<TcpStream>>, held: H) -> Self {
        Self { transport: Transport::Tls(Box::new(stream.into())), held }
    }
}

impl Stream {
    /// Its entry in the connection limit. The code that answers requests records them there.
    pub fn activity(&self) -> Arc<ConnectionActivity> {
        Arc::clone(&self.held)
    }

    /// The address of the peer.
    ///
    /// # Errors
    /// When the connection is gone.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        match &self.transport {
            Transport::Plain(stream) => stream.peer_addr(),
            Transport::Tls(stream) => stream.get_ref().0.peer_addr(),
        }
    }

    /// Whether an error occurred on the socket since the last call.
    pub fn has_failed(&self) -> bool {
        let stream = match &self.transport {
            Transport::Plain(stream) => stream,
            Transport::Tls(stream) => stream.get_ref().0,
        };
        !matches!(stream.take_error(), Ok(None))
    }

    /// Makes the close a reset. With TLS it is one already, unless a closing message is sent.
    pub fn reset(&self) {
        if let Transport::Plain(stream) = &self.transport {
            let _ = stream.set_zero_linger(); // Where that cannot be set, it ends as any other.
        }
    }

    /// Whether it uses TLS.
    pub const fn is_secure(&self) -> bool {
        matches!(self.transport, Transport::Tls(_))
    }

    /// The protocol that ALPN agreed on, if any.
    pub fn agreed(&self) -> Option<&[u8]> {
        match &self.transport {
            Transport::Plain(_) => None,
            Transport::Tls(stream) => stream.get_ref().1.alpn_protocol(),
        }
    }
}

impl<H: Unpin> AsyncRead for Stream<H> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.get_mut().transport {
            Transport::Plain(stream) => Pin::new(stream).poll_read(context, into),
            Transport::Tls(stream) => Pin::new(stream).poll_read(context, into),
        }
    }
}

impl<H: Unpin> AsyncWrite for Stream<H> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().transport {
            Transport::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Transport::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().transport {
            Transport::Plain(stream) => Pin::new(stream).poll_flush(context),
            Transport::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().transport {
            Transport::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Transport::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().transport {
            Transport::Plain(stream) => Pin::new(stream).poll_write_vectored(context, bytes),
            Transport::Tls(stream) => Pin::new(stream).poll_write_vectored(context, bytes),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.transport {
            Transport::Plain(stream) => stream.is_write_vectored(),
            Transport::Tls(stream) => stream.is_write_vectored(),
        }
    }
}
