//! Connections to an upstream: how one is made, with TLS or without, and what is spoken on it.

use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::uri::Scheme;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto::ring};

use super::body::Lent;
use super::plan::{Protocol, RoutePlan, Target};
use crate::listen::Links;
use crate::tls;

/// Largest head of an answer, and most fields of it.
const HEAD_BYTES_MAX: usize = 64 << 10;
const HEAD_FIELDS_MAX: usize = 256;
/// Bytes that an upstream may send ahead of what a client reads, for an answer and for all on one connection of HTTP/2.
const STREAM_WINDOW_BYTES: u32 = 256 << 10;
const CONNECTION_WINDOW_BYTES: u32 = 4 << 20;
/// Bytes of a request that wait to be sent on one stream.
const SEND_BUFFER_BYTES: usize = 128 << 10;
/// How often an upstream of HTTP/2 is asked whether it is there, and how long it may take to say so.
const PING_INTERVAL: Duration = Duration::from_secs(20);
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// Sends requests on one connection.
pub(super) enum Sender {
    Http1(http1::SendRequest<Lent>),
    H2(http2::SendRequest<Lent>),
}

/// How connections to one upstream are made.
pub(super) struct Dialer {
    host: String,
    port: u16,
    protocol: Protocol,
    secure: Option<Secure>,
    /// Descriptors for connections to all upstreams.
    links: Links,
}

struct Secure {
    name: ServerName<'static>,
    /// For whatever is agreed on, and for HTTP/1.1 alone.
    usual: TlsConnector,
    http1: TlsConnector,
}

impl Dialer {
    /// For an upstream of a route.
    ///
    /// # Errors
    /// When the authorities cannot be read, or the name cannot be in a certificate.
    pub(super) fn new(target: &Target, route: &RoutePlan, links: &Links) -> Result<Self, String> {
        let (protocol, ca) = (route.protocol, route.ca.as_deref());
        let protocol = if target.is_h2 { Protocol::H2 } else { protocol };
        let secure = if target.is_secure { Some(Secure::new(&target.host, protocol, ca)?) } else { None };
        Ok(Self { host: target.host.clone(), port: target.port, protocol, secure, links: links.clone() })
    }

    /// Whether all connections speak HTTP/2 without asking, so that no other protocol can be asked for.
    pub(super) const fn is_only_h2(&self) -> bool {
        matches!(self.protocol, Protocol::H2)
    }

    /// What the target of a request names.
    pub(super) fn scheme(&self) -> Scheme {
        if self.secure.is_some() { Scheme::HTTPS } else { Scheme::HTTP }
    }

    /// A connection that speaks what the upstream does.
    ///
    /// # Errors
    /// When there is none to be had.
    pub(super) async fn dial(&self) -> io::Result<Sender> {
        let (tcp, place) = self.tcp().await?;
        let Some(secure) = &self.secure else {
            let stream = Link { stream: Inner::Plain(tcp), _place: place };
            return match self.protocol {
                Protocol::H2 => h2(stream).await,
                Protocol::Auto | Protocol::Http1 => http1(stream).await,
            };
        };
        let stream = secure.usual.connect(secure.name.clone(), tcp).await?;
        let is_h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        if self.protocol == Protocol::H2 && !is_h2 {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "it does not speak HTTP/2"));
        }
        let stream = Link { stream: Inner::Tls(Box::new(stream)), _place: place };
        if is_h2 { h2(stream).await } else { http1(stream).await }
    }

    /// A connection of HTTP/1.1, for a request that asks for another protocol.
    ///
    /// # Errors
    /// As [`Self::dial`].
    pub(super) async fn dial_http1(&self) -> io::Result<Sender> {
        let (tcp, place) = self.tcp().await?;
        let stream = match &self.secure {
            None => Inner::Plain(tcp),
            Some(secure) => Inner::Tls(Box::new(secure.http1.connect(secure.name.clone(), tcp).await?)),
        };
        http1(Link { stream, _place: place }).await
    }

    /// A bare connection, once there is a descriptor for one.
    async fn tcp(&self) -> io::Result<(TcpStream, OwnedSemaphorePermit)> {
        let place = self.links.one().await.map_err(io::Error::other)?;
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        let _ = stream.set_nodelay(true); // Where that cannot be set, it is only slower.
        Ok((stream, place))
    }
}

impl Secure {
    fn new(host: &str, protocol: Protocol, ca: Option<&Path>) -> Result<Self, String> {
        let name = ServerName::try_from(host.to_owned());
        let name = name.map_err(|_| format!("{host:?} is no name that a certificate can have"))?;
        let roots = match ca {
            Some(path) => tls::authorities(path)?,
            None => {
                let mut roots = RootCertStore::empty();
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
                roots
            }
        };
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let builder = builder.with_protocol_versions(tls::FROM_12).map_err(|error| error.to_string())?;
        let config = builder.with_root_certificates(roots).with_no_client_auth();
        let connector = |protocols: &[&str]| {
            let mut config = config.clone();
            config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
            TlsConnector::from(Arc::new(config))
        };
        let usual = match protocol {
            Protocol::Auto => connector(&["h2", "http/1.1"]),
            Protocol::Http1 => connector(&["http/1.1"]),
            Protocol::H2 => connector(&["h2"]),
        };
        Ok(Self { name, usual, http1: connector(&["http/1.1"]) })
    }
}

async fn http1(stream: Link) -> io::Result<Sender> {
    let mut builder = http1::Builder::new();
    builder.max_buf_size(HEAD_BYTES_MAX).max_headers(HEAD_FIELDS_MAX);
    let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    tokio::spawn(async move {
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!(%error, "a connection to an upstream ended early");
        }
    });
    Ok(Sender::Http1(sender))
}

async fn h2(stream: Link) -> io::Result<Sender> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_header_list_size(u32::try_from(HEAD_BYTES_MAX).unwrap_or(u32::MAX))
        .max_send_buf_size(SEND_BUFFER_BYTES)
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT);
    let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection to an upstream ended early");
        }
    });
    Ok(Sender::H2(sender))
}

/// A stream to an upstream, and its place among all of them.
struct Link {
    stream: Inner,
    _place: OwnedSemaphorePermit,
}

enum Inner {
    Plain(TcpStream),
    /// Boxed: it is much larger.
    Tls(Box<TlsStream<TcpStream>>),
}

impl AsyncRead for Link {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stream {
            Inner::Plain(stream) => Pin::new(stream).poll_read(context, into),
            Inner::Tls(stream) => Pin::new(stream).poll_read(context, into),
        }
    }
}

impl AsyncWrite for Link {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().stream {
            Inner::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Inner::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stream {
            Inner::Plain(stream) => Pin::new(stream).poll_flush(context),
            Inner::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stream {
            Inner::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Inner::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().stream {
            Inner::Plain(stream) => Pin::new(stream).poll_write_vectored(context, bytes),
            Inner::Tls(stream) => Pin::new(stream).poll_write_vectored(context, bytes),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            Inner::Plain(stream) => stream.is_write_vectored(),
            Inner::Tls(stream) => stream.is_write_vectored(),
        }
    }
}
