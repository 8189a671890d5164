//! TLS on every listener: certificates from disk, reloaded when they change, and the handshake of a connection. The
//! last good pair stays in use if a new one is wrong. Open connections keep the certificates of their handshake.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::version::TLS13;
use tokio_rustls::rustls::{ServerConfig, SupportedProtocolVersion};
use tollgate::Timestamp;
pub(crate) use tollgate_gateway::pem::{FROM_12, authorities, certificates, key};

use crate::file_watch::{FileWords, Reloadable, ReloadableFiles};

const WORDS: FileWords = FileWords { were: "the certificates were", stay: "stay in use" };
/// Only TLS 1.3.
const FROM_13: &[&SupportedProtocolVersion] = &[&TLS13];

/// The protocol inside TLS, by its ALPN name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AlpnProtocol {
    /// HTTP/1.1.
    Http,
    /// HTTP/2, for gRPC.
    Grpc,
    /// Either, as the client prefers.
    Both,
    /// A protocol without an ALPN name.
    Unnamed,
}

impl AlpnProtocol {
    pub(crate) fn protocols(self) -> Vec<Vec<u8>> {
        match self {
            AlpnProtocol::Http => vec![b"http/1.1".to_vec()],
            AlpnProtocol::Grpc => vec![b"h2".to_vec()],
            AlpnProtocol::Both => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
            AlpnProtocol::Unnamed => Vec::new(),
        }
    }
}

/// The oldest TLS that is spoken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum TlsVersion {
    /// TLS 1.2 and 1.3.
    #[value(name = "1.2")]
    V12,
    /// TLS 1.3 only.
    #[default]
    #[value(name = "1.3")]
    V13,
}

/// The TLS files.
#[derive(Clone, Debug)]
pub(crate) struct TlsFiles {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
    /// The CAs of client certificates. `None` if clients need no certificate.
    pub(crate) client_authorities: Option<PathBuf>,
    /// The oldest accepted version.
    pub(crate) oldest: TlsVersion,
}

/// The certificates in use.
pub(crate) struct Tls {
    settings: TlsFiles,
    configs: ArcSwap<[Arc<ServerConfig>; 4]>,
    files: ReloadableFiles,
}

impl Tls {
    /// Reads these files.
    ///
    /// # Errors
    /// When the files have the wrong content. The message says which, and what would be accepted.
    pub(crate) fn open(files: TlsFiles, now: Timestamp) -> Result<Arc<Self>, String> {
        let watched = ReloadableFiles::new(WORDS, files.paths(), now);
        let configs = ArcSwap::from_pointee(files.load()?);
        Ok(Arc::new(Self { settings: files, configs, files: watched }))
    }

    /// The acceptor for a new connection, with the current certificates.
    pub(crate) fn acceptor(&self, inside: AlpnProtocol) -> TlsAcceptor {
        let [http, grpc, both, unnamed] = &**self.configs.load();
        TlsAcceptor::from(Arc::clone(match inside {
            AlpnProtocol::Http => http,
            AlpnProtocol::Grpc => grpc,
            AlpnProtocol::Both => both,
            AlpnProtocol::Unnamed => unnamed,
        }))
    }
}

impl Reloadable for Tls {
    fn files(&self) -> &ReloadableFiles {
        &self.files
    }

    /// Certificate and key are two files that are seldom replaced at the same instant. A pair that does not match is
    /// therefore not used, and the next look may find one that does.
    fn load(&self) -> Result<String, String> {
        self.configs.store(Arc::new(self.settings.load()?));
        Ok(String::new())
    }
}

impl TlsFiles {
    fn paths(&self) -> Vec<PathBuf> {
        let mut paths = vec![self.certificate.clone(), self.key.clone()];
        paths.extend(self.client_authorities.clone());
        paths
    }

    /// Creates a configuration for each kind of protocol. A new one remembers no sessions, so no client can resume a
    /// session that a removed CA once permitted.
    fn load(&self) -> Result<[Arc<ServerConfig>; 4], String> {
        let provider = Arc::new(ring::default_provider());
        let versions = match self.oldest {
            TlsVersion::V12 => FROM_12,
            TlsVersion::V13 => FROM_13,
        };
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
        let builder = builder.with_protocol_versions(versions).map_err(|error| error.to_string())?;
        let builder = match &self.client_authorities {
            None => builder.with_no_client_auth(),
            Some(path) => builder.with_client_cert_verifier(verifier(path, provider)?),
        };
        let chain = certificates(&self.certificate)?;
        let config = builder.with_single_cert(chain, key(&self.key)?).map_err(|error| {
            format!(
                "{} and {} are not a pair: {error}; accepted: a certificate chain, its own first, and the key of that",
                self.certificate.display(),
                self.key.display()
            )
        })?;
        Ok([AlpnProtocol::Http, AlpnProtocol::Grpc, AlpnProtocol::Both, AlpnProtocol::Unnamed].map(
            |inside| {
                let mut config = config.clone();
                config.alpn_protocols = inside.protocols();
                Arc::new(config)
            },
        ))
    }
}

fn verifier(
    path: &Path,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn tokio_rustls::rustls::server::danger::ClientCertVerifier>, String> {
    let authorities = Arc::new(authorities(path)?);
    let verifier = WebPkiClientVerifier::builder_with_provider(authorities, provider).build();
    verifier.map_err(|error| format!("{}: {error}", path.display()))
}
