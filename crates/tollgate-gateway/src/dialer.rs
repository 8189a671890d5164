//! Connections to an upstream: how one is made, with or without TLS, and its protocol.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http::uri::Scheme;
use hyper::client::conn::http1 as hyper_http1;
use hyper_util::rt::TokioIo;
use socket2::SockRef;
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto::ring};

use crate::http1::reply::{HEAD_BYTES_MAX, HEAD_FIELDS_MAX};
use crate::http1_client::Http1Connection;
use crate::http2_client::{H2, StreamShare};
use crate::listen::{UpstreamBudget, UpstreamStream, ask_when_silent, end_when_deaf};
use crate::pem;
use crate::plan::{RoutePlan, UpstreamProtocol};
use crate::target::Target;
use crate::upload::UploadBody;

/// How long to wait for a file descriptor of this process. The upstream is not at fault for this wait.
const LINK_TIMEOUT: Duration = Duration::from_secs(1);

/// The sending side of a connection.
pub(crate) enum ConnectionSender {
    /// One request at a time.
    Http1(Box<Http1Connection>),
    /// One request that asks for a protocol upgrade. hyper hands over the upgraded stream.
    Upgrade(hyper_http1::SendRequest<UploadBody>),
    /// Many requests at once.
    H2(H2),
}

impl ConnectionSender {
    /// The stream of a request, on a connection that carries several.
    pub(crate) fn stream(&self) -> Option<StreamShare> {
        match self {
            Self::Http1(_) | Self::Upgrade(_) => None,
            Self::H2(h2) => Some(h2.stream()),
        }
    }
}

/// How connections to one upstream are made.
pub(crate) struct Dialer {
    host: String,
    port: u16,
    protocol: UpstreamProtocol,
    secure: Option<Secure>,
    /// Descriptors for connections to all upstreams.
    budget: UpstreamBudget,
}

struct Secure {
    name: ServerName<'static>,
    /// For any protocol that ALPN agrees on, and for HTTP/1.1 alone.
    usual: TlsConnector,
    http1: TlsConnector,
}

impl Dialer {
    /// For an upstream of a route.
    ///
    /// # Errors
    /// When the CA certificates cannot be read, or the host is no valid name for a certificate.
    pub(crate) fn new(target: &Target, route: &RoutePlan, budget: &UpstreamBudget) -> Result<Self, String> {
        let (protocol, ca) = (route.protocol, route.ca.as_deref());
        let protocol = if target.is_h2 { UpstreamProtocol::H2 } else { protocol };
        let secure = if target.is_secure { Some(Secure::new(&target.host, protocol, ca)?) } else { None };
        Ok(Self { host: target.host.clone(), port: target.port, protocol, secure, budget: budget.clone() })
    }

    /// Whether all connections use HTTP/2 by prior knowledge, so that no protocol upgrade is possible.
    pub(crate) const fn is_only_h2(&self) -> bool {
        matches!(self.protocol, UpstreamProtocol::H2)
    }

    /// The scheme in the target of a request.
    pub(crate) fn scheme(&self) -> Scheme {
        if self.secure.is_some() { Scheme::HTTPS } else { Scheme::HTTP }
    }

    /// Makes a connection in the upstream's protocol.
    ///
    /// # Errors
    /// When the connection fails.
    pub(crate) async fn dial(&self) -> io::Result<ConnectionSender> {
        let (tcp, permit) = self.tcp().await?;
        let Some(secure) = &self.secure else {
            let stream = UpstreamStream::plain(tcp, permit);
            return match self.protocol {
                UpstreamProtocol::H2 => h2(stream).await,
                UpstreamProtocol::Auto | UpstreamProtocol::Http1 => {
                    Ok(ConnectionSender::Http1(Http1Connection::new(stream)))
                }
            };
        };
        let stream = secure.usual.connect(secure.name.clone(), tcp).await?;
        let is_h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        if self.protocol == UpstreamProtocol::H2 && !is_h2 {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "it does not speak HTTP/2"));
        }
        let stream = UpstreamStream::secure(stream, permit);
        if is_h2 { h2(stream).await } else { Ok(ConnectionSender::Http1(Http1Connection::new(stream))) }
    }

    /// Makes an HTTP/1.1 connection for a request that asks for a protocol upgrade.
    ///
    /// # Errors
    /// As [`Self::dial`].
    pub(crate) async fn dial_http1(&self) -> io::Result<ConnectionSender> {
        let (tcp, permit) = self.tcp().await?;
        let _ = end_when_deaf(SockRef::from(&tcp)); // Where that cannot be set, it is noticed later.
        let stream = match &self.secure {
            None => UpstreamStream::plain(tcp, permit),
            Some(secure) => {
                UpstreamStream::secure(secure.http1.connect(secure.name.clone(), tcp).await?, permit)
            }
        };
        upgradable(stream).await
    }

    /// Makes a TCP connection, once a descriptor is free.
    async fn tcp(&self) -> io::Result<(TcpStream, OwnedSemaphorePermit)> {
        let Ok(permit) = tokio::time::timeout(LINK_TIMEOUT, self.budget.one()).await else {
            return Err(io::Error::new(
                io::ErrorKind::QuotaExceeded,
                "this process may open no more connections",
            ));
        };
        let permit = permit.map_err(io::Error::other)?;
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        let _ = stream.set_nodelay(true); // Where that cannot be set, it is only slower.
        let _ = ask_when_silent(SockRef::from(&stream)); // As above.
        Ok((stream, permit))
    }
}

impl Secure {
    fn new(host: &str, protocol: UpstreamProtocol, ca: Option<&Path>) -> Result<Self, String> {
        let name = ServerName::try_from(host.to_owned());
        let name = name.map_err(|_| format!("{host:?} is no name that a certificate can have"))?;
        let roots = match ca {
            Some(path) => pem::authorities(path)?,
            None => {
                let mut roots = RootCertStore::empty();
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
                roots
            }
        };
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let builder = builder.with_protocol_versions(pem::FROM_12).map_err(|error| error.to_string())?;
        let config = builder.with_root_certificates(roots).with_no_client_auth();
        let connector = |protocols: &[&str]| {
            let mut config = config.clone();
            config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
            TlsConnector::from(Arc::new(config))
        };
        let usual = match protocol {
            UpstreamProtocol::Auto => connector(&["h2", "http/1.1"]),
            UpstreamProtocol::Http1 => connector(&["http/1.1"]),
            UpstreamProtocol::H2 => connector(&["h2"]),
        };
        Ok(Self { name, usual, http1: connector(&["http/1.1"]) })
    }
}

async fn upgradable(stream: UpstreamStream) -> io::Result<ConnectionSender> {
    let mut builder = hyper_http1::Builder::new();
    builder.max_buf_size(HEAD_BYTES_MAX).max_headers(HEAD_FIELDS_MAX);
    let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    tokio::spawn(async move {
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!(%error, "a connection to an upstream ended early");
        }
    });
    Ok(ConnectionSender::Upgrade(sender))
}

async fn h2(stream: UpstreamStream) -> io::Result<ConnectionSender> {
    H2::new(stream, HEAD_BYTES_MAX).await.map(ConnectionSender::H2)
}
