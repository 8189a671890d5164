//! A stream to an upstream, with or without TLS.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio_rustls::client::TlsStream;

/// A stream to an upstream, and its permit among the connections to all upstreams.
pub(crate) struct UpstreamStream {
    stream: MaybeTls,
    _slots: OwnedSemaphorePermit,
}

enum MaybeTls {
    Plain(TcpStream),
    /// Boxed: it is much larger.
    Tls(Box<TlsStream<TcpStream>>),
}

impl UpstreamStream {
    pub(crate) const fn plain(tcp: TcpStream, permit: OwnedSemaphorePermit) -> Self {
        Self { stream: MaybeTls::Plain(tcp), _slots: permit }
    }

    pub(crate) fn tls(tls: TlsStream<TcpStream>, permit: OwnedSemaphorePermit) -> Self {
        Self { stream: MaybeTls::Tls(Box::new(tls)), _slots: permit }
    }
}

impl AsyncRead for UpstreamStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stream {
            MaybeTls::Plain(stream) => Pin::new(stream).poll_read(context, into),
            MaybeTls::Tls(stream) => Pin::new(stream).poll_read(context, into),
        }
    }
}

impl AsyncWrite for UpstreamStream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().stream {
            MaybeTls::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            MaybeTls::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stream {
            MaybeTls::Plain(stream) => Pin::new(stream).poll_flush(context),
            MaybeTls::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stream {
            MaybeTls::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            MaybeTls::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().stream {
            MaybeTls::Plain(stream) => Pin::new(stream).poll_write_vectored(context, bytes),
            MaybeTls::Tls(stream) => Pin::new(stream).poll_write_vectored(context, bytes),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            MaybeTls::Plain(stream) => stream.is_write_vectored(),
            MaybeTls::Tls(stream) => stream.is_write_vectored(),
        }
    }
}
