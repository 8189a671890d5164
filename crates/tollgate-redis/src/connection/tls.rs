//! TLS to the store. The peer's name is always verified. Certificates are read for each connection, so that they can be
//! renewed without a restart.

use std::io;
use std::path::Path;
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::settings::TlsFiles;
use tollgate::policy::source::plain_cause;

/// Maximum size of a certificate or key file.
const PEM_BYTES_MAX: u64 = 1 << 20;

/// Runs the TLS handshake as a client of `name`.
pub(super) async fn connect(
    stream: TcpStream,
    name: &str,
    files: &TlsFiles,
) -> io::Result<TlsStream<TcpStream>> {
    let files = files.clone();
    // Reading files, especially the system's CA certificates, must not block decisions.
    let config =
        tokio::task::spawn_blocking(move || client_config(&files)).await.map_err(io::Error::other)??;
    let name = ServerName::try_from(name.to_owned()).map_err(io::Error::other)?;
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

fn client_config(files: &TlsFiles) -> io::Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    match &files.ca {
        Some(path) => {
            for certificate in certificates(path)? {
                roots.add(certificate).map_err(|error| file_error(path, &error))?;
            }
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&TLS13, &TLS12])
        .map_err(io::Error::other)?
        .with_root_certificates(roots);
    match (&files.certificate, &files.key) {
        (Some(certificate), Some(key)) => {
            let text = read(key)?;
            let private = PrivateKeyDer::from_pem_slice(&text).map_err(|error| file_error(key, &error))?;
            builder
                .with_client_auth_cert(certificates(certificate)?, private)
                .map_err(|error| file_error(key, &error))
        }
        _ => Ok(builder.with_no_client_auth()),
    }
}

fn certificates(path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let text = read(path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let found = found.map_err(|error| file_error(path, &error))?;
    if found.is_empty() {
        return Err(file_error(path, &"it holds no certificate in PEM format"));
    }
    Ok(found)
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let found = std::fs::metadata(path).map_err(|error| file_error(path, &error))?;
    // It is read for each connection, and a pipe would be waited for.
    if !found.is_file() {
        return Err(file_error(path, &"it is no regular file"));
    }
    if found.len() > PEM_BYTES_MAX {
        return Err(file_error(path, &"it is larger than 1 MiB"));
    }
    std::fs::read(path).map_err(|error| file_error(path, &error))
}

fn file_error(path: &Path, error: &dyn std::fmt::Display) -> io::Error {
    io::Error::other(format!("{}: {}", path.display(), plain_cause(error)))
}
