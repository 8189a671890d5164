//! A connection's stream, the same type with TLS and without, so that every protocol accepts either.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use super::crowd::Seat;

/// A connection to a client.
#[derive(Debug)]
pub struct Stream {
    way: Way,
    /// Its entry in the connection limit, which records whether it is used.
    seat: Arc<Seat>,
}

#[derive(Debug)]
enum Way {
    /// Without TLS.
    Plain(TcpStream),
    /// Inside TLS. Boxed: it is much larger.
    Tls(Box<TlsStream<TcpStream>>),
}

impl Stream {
    /// A connection without TLS.
    #[must_use]
    pub const fn plain(stream: TcpStream, seat: Arc<Seat>) -> Self {
        Self { way: Way::Plain(stream), seat }
    }

    /// A connection after its TLS handshake.
    #[must_use]
    pub fn secure(stream: TlsStream<TcpStream>, seat: Arc<Seat>) -> Self {
        Self { way: Way::Tls(Box::new(stream)), seat }
    }

    /// Its entry in the connection limit. The code that answers requests records them there.
    pub fn seat(&self) -> Arc<Seat> {
        Arc::clone(&self.seat)
    }

    /// The address of the peer.
    ///
    /// # Errors
    /// When the connection is gone.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        match &self.way {
            Way::Plain(stream) => stream.peer_addr(),
            Way::Tls(stream) => stream.get_ref().0.peer_addr(),
        }
    }

    /// Whether an error occurred on the socket since the last call.
    pub fn has_failed(&self) -> bool {
        let stream = match &self.way {
            Way::Plain(stream) => stream,
            Way::Tls(stream) => stream.get_ref().0,
        };
        !matches!(stream.take_error(), Ok(None))
    }

    /// Makes the close a reset. With TLS it is one already, unless a closing message is sent.
    pub fn reset(&self) {
        if let Way::Plain(stream) = &self.way {
            let _ = stream.set_zero_linger(); // Where that cannot be set, it ends as any other.
        }
    }

    /// Whether it uses TLS.
    pub const fn is_secure(&self) -> bool {
        matches!(self.way, Way::Tls(_))
    }

    /// The protocol that ALPN agreed on, if any.
    pub fn agreed(&self) -> Option<&[u8]> {
        match &self.way {
            Way::Plain(_) => None,
            Way::Tls(stream) => stream.get_ref().1.alpn_protocol(),
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.get_mut().way {
            Way::Plain(stream) => Pin::new(stream).poll_read(context, into),
            Way::Tls(stream) => Pin::new(stream).poll_read(context, into),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().way {
            Way::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Way::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().way {
            Way::Plain(stream) => Pin::new(stream).poll_flush(context),
            Way::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().way {
            Way::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Way::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().way {
            Way::Plain(stream) => Pin::new(stream).poll_write_vectored(context, bytes),
            Way::Tls(stream) => Pin::new(stream).poll_write_vectored(context, bytes),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.way {
            Way::Plain(stream) => stream.is_write_vectored(),
            Way::Tls(stream) => stream.is_write_vectored(),
        }
    }
}
