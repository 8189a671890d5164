//! Certificates, CAs and keys from files in PEM.

use std::path::Path;

use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{RootCertStore, SupportedProtocolVersion};
use tollgate::policy::Problem;

use crate::disk;

/// Maximum size of a file with certificates or keys.
const PEM_BYTES_MAX: u64 = 1 << 20;
/// TLS 1.2 and 1.3.
pub const FROM_12: &[&SupportedProtocolVersion] = &[&TLS13, &TLS12];

/// The CAs in a file.
///
/// # Errors
/// When it cannot be read, contains none, or something else.
pub fn authorities(path: &Path) -> Result<RootCertStore, Problem> {
    let mut authorities = RootCertStore::empty();
    for certificate in certificates(path)? {
        let added = authorities.add(certificate);
        added.map_err(|error| {
            Problem::new(format!("{}: not a CA: {error}", path.display()), "certificates of CAs in PEM")
        })?;
    }
    Ok(authorities)
}

/// The certificates in a file.
///
/// # Errors
/// As [`authorities`].
pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Problem> {
    let wrong = |what: String| Problem::new(format!("{}: {what}", path.display()), "certificates in PEM");
    let bytes = read(path)?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    let all = all.map_err(|error| wrong(error.to_string()))?;
    if all.is_empty() { Err(wrong("no certificate".to_owned())) } else { Ok(all) }
}

/// The private key in a file.
///
/// # Errors
/// As [`authorities`].
pub fn key(path: &Path) -> Result<PrivateKeyDer<'static>, Problem> {
    let wrong = |what: String| Problem::new(format!("{}: {what}", path.display()), "a private key in PEM");
    let bytes = read(path)?;
    PrivateKeyDer::from_pem_slice(&bytes).map_err(|error| wrong(error.to_string()))
}

fn read(path: &Path) -> Result<Vec<u8>, Problem> {
    disk::read(path, PEM_BYTES_MAX).map_err(|error| Problem::new(disk::unreadable(path, &error), ""))
}
