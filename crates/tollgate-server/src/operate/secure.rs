//! TLS to a server: the CAs to trust, and the certificate to present. Only the CAs that the user names are trusted, and
//! none of the system's: the operator of a server knows where to find its certificate.

use std::io;
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::ServerName;

use crate::cli::TrustArguments;
use crate::tls;

/// Authenticates the server, and the user to the server.
pub(super) struct SecureClient {
    connector: TlsConnector,
    name: ServerName<'static>,
    /// Whether a client certificate is presented to the server.
    is_shown: bool,
}

impl SecureClient {
    /// The TLS settings in the arguments for a server of this name.
    ///
    /// # Errors
    /// When they name no CA, or files with wrong content.
    pub(super) fn new(arguments: &TrustArguments, host: &str) -> Result<Self, String> {
        let path = arguments.ca.as_deref().ok_or(
            "no trusted CA is given; name the CA that signed the server's certificate with --ca FILE or TOLLGATE_CA",
        )?;
        let name = ServerName::try_from(host.to_owned());
        let name = name.map_err(|_| format!("{host:?} is no name that a certificate can have"))?;
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let builder = builder.with_protocol_versions(tls::FROM_12).map_err(|error| error.to_string())?;
        let builder = builder.with_root_certificates(tls::authorities(path)?);
        let mut config = match (&arguments.cert, &arguments.key) {
            (Some(certificate), Some(key)) => {
                let pair = builder.with_client_auth_cert(tls::certificates(certificate)?, tls::key(key)?);
                pair.map_err(|error| {
                    format!("{} and {} are not a pair: {error}", certificate.display(), key.display())
                })?
            }
            _ => builder.with_no_client_auth(),
        };
        config.alpn_protocols = tls::AlpnProtocol::Http.protocols();
        let is_shown = config.client_auth_cert_resolver.has_certs();
        Ok(Self { connector: TlsConnector::from(Arc::new(config)), name, is_shown })
    }

    /// Performs the handshake.
    pub(super) async fn over(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        self.connector.connect(self.name.clone(), stream).await
    }

    /// The cure for a failure. A server that rejects a client certificate says why and closes the connection. A client
    /// that is still sending at that moment may see only that the connection was closed.
    pub(super) fn cure(&self, error: &str) -> &'static str {
        let cures = [
            ("UnknownIssuer", "no authority in --ca FILE has signed its certificate"),
            ("not valid for name", "call the server by a name that its certificate has"),
            ("Expired", "its certificate has expired, or a clock is wrong"),
            ("CaUsedAsEndEntity", "its certificate is an authority's own; have it sign one for the server"),
            ("InvalidContentType", "it may speak no TLS: try http://"),
        ];
        match cures.iter().find(|(sign, _)| error.contains(sign)) {
            Some((_, cure)) => cure,
            None if self.is_shown => {
                "it may not take the certificate of --cert FILE, or may be no Tollgate server"
            }
            None => "it may want a certificate: show one with --cert FILE and --key FILE",
        }
    }
}
