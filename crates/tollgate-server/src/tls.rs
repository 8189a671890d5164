//! TLS on every listener: certificates from disk, reloaded when they change, and the handshake of a connection. The
//! last good pair stays in use if a new one is wrong. Open connections keep the certificates of their handshake.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::version::TLS13;
use tokio_rustls::rustls::{ServerConfig, SupportedProtocolVersion};
use tollgate::Timestamp;
pub(crate) use tollgate_gateway::pem::{FROM_12, authorities, certificates, key};

use crate::failure::Failure;
use crate::file_watch::{DISK_TIMEOUT, Debounce, FileReload, FileWatcher, ReloadMode, Seen, Version, hangs};

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

/// The state of the certificates.
#[derive(Clone, Debug)]
pub(crate) struct TlsStatus {
    /// The version in use, a hash of the files.
    pub(crate) version: Option<Version>,
    pub(crate) loaded_at: Timestamp,
    /// Why the files on disk are not in use, while that is so.
    pub(crate) error: Option<Failure>,
    /// Why the state of the disk is unknown: a look has not ended.
    pub(crate) stuck: Option<Failure>,
}

impl TlsStatus {
    /// Why the certificates in use may differ from the files on disk.
    pub(crate) fn trouble(&self) -> Option<&Failure> {
        self.stuck.as_ref().or(self.error.as_ref())
    }
}

/// The certificates in use.
pub(crate) struct Tls {
    files: TlsFiles,
    configs: ArcSwap<[Arc<ServerConfig>; 4]>,
    status: ArcSwap<TlsStatus>,
    watch: Mutex<(FileWatcher, Debounce)>,
}

impl Tls {
    /// Reads these files.
    ///
    /// # Errors
    /// When the files have the wrong content. The message says which, and what would be accepted.
    pub(crate) fn open(files: TlsFiles, now: Timestamp) -> Result<Arc<Self>, String> {
        let (mut watcher, mut watch) = (FileWatcher::new(files.paths()), Debounce::default());
        let seen = watcher.scan();
        let configs = files.load()?;
        let status = TlsStatus { version: seen.version(), loaded_at: now, error: None, stuck: None };
        watch.acted(seen);
        Ok(Arc::new(Self {
            files,
            configs: ArcSwap::from_pointee(configs),
            status: ArcSwap::from_pointee(status),
            watch: Mutex::new((watcher, watch)),
        }))
    }

    /// The state of the certificates.
    pub(crate) fn status(&self) -> Arc<TlsStatus> {
        self.status.load_full()
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

    /// Records and logs that a look at the disk has not ended in time, once while that lasts.
    pub(crate) fn late(&self, now: Timestamp) -> String {
        if let Some(stuck) = &self.status.load().stuck {
            return stuck.text.clone();
        }
        let paths: Vec<String> = self.files.paths().iter().map(|path| path.display().to_string()).collect();
        let text = hangs(&paths.join(", "), DISK_TIMEOUT);
        let stuck = Some(Failure::new(text.clone(), now));
        self.status.rcu(|status| TlsStatus { stuck: stuck.clone(), ..(**status).clone() });
        tracing::error!(error = text, "the certificates on disk cannot be read: those before stay in use");
        text
    }

    /// Records that a look has ended: if the disk did not answer before, it does now.
    pub(crate) fn answers(&self) {
        if self.status.load().stuck.is_some() {
            self.status.rcu(|status| TlsStatus { stuck: None, ..(**status).clone() });
            tracing::info!("the certificates on disk can be read again");
        }
    }

    /// Reloads changed files. Certificate and key are two files that are seldom replaced at the same instant. A pair
    /// that does not match is therefore not used, and the next look may find one that does.
    ///
    /// # Errors
    /// Why the files on disk are not in use.
    pub(crate) fn run_cycle(&self, mode: ReloadMode, now: Timestamp) -> Result<FileReload, String> {
        // Cycles run one after the other. The lock only satisfies the compiler.
        let (watcher, watch) = &mut *self.watch.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = watcher.scan();
        if !watch.saw(&seen) && mode == ReloadMode::OnChange {
            return Ok(FileReload::Nothing);
        }
        watch.acted(seen.clone());
        let before = self.status.load_full();
        let loaded = match &seen {
            Seen::Version(_) => self.files.load(),
            Seen::Unreadable(error) => Err(error.clone()),
        };
        match loaded {
            Ok(configs) => {
                self.configs.store(Arc::new(configs));
                let status = TlsStatus { version: seen.version(), loaded_at: now, error: None, stuck: None };
                self.status.store(Arc::new(status));
                tracing::info!("the certificates were reloaded");
                let is_same = before.error.is_none() && before.version == seen.version();
                Ok(if is_same {
                    FileReload::Nothing
                } else {
                    FileReload::Read("the certificates were reloaded".to_owned())
                })
            }
            Err(error) => {
                let failure = Some(Failure::new(error.clone(), now));
                self.status.store(Arc::new(TlsStatus { error: failure, ..(*before).clone() }));
                tracing::error!(error, "the certificates were not reloaded: those before stay in use");
                Err(format!("the certificates were not reloaded, and those before stay in use: {error}"))
            }
        }
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
