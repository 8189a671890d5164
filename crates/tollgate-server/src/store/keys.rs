//! Files and variables that let a server into its store: the password, the certificates, and the secret of the fleet.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use redis::{ClientTlsConfig, TlsCertificates};

/// Largest file of a password, a secret or certificates.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Certificates, as they are in their files. Has no `Debug`.
#[derive(Clone, Default)]
pub(crate) struct Keys {
    authority: Option<Vec<u8>>,
    own: Option<(Vec<u8>, Vec<u8>)>,
}

impl Keys {
    /// Reads the files that are named.
    ///
    /// # Errors
    /// When one cannot be read, or a certificate comes without its key.
    pub(crate) fn read(ca: Option<&Path>, cert: Option<&Path>, key: Option<&Path>) -> Result<Self, String> {
        let own = match (cert, key) {
            (Some(cert), Some(key)) => Some((bytes(cert)?, bytes(key)?)),
            (None, None) => None,
            _ => {
                return Err(
                    "a certificate for the store and its key belong together; name both or none".to_owned()
                );
            }
        };
        Ok(Self { authority: ca.map(bytes).transpose()?, own })
    }

    /// As the client wants them.
    pub(crate) fn certificates(&self) -> TlsCertificates {
        let own = self.own.clone();
        TlsCertificates {
            client_tls: own.map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key }),
            root_cert: self.authority.clone(),
        }
    }

    /// Whether there are any.
    pub(crate) const fn is_empty(&self) -> bool {
        self.authority.is_none() && self.own.is_none()
    }
}

/// What is in a file of one line, such as a password; the line's end does not count.
///
/// # Errors
/// When it cannot be read, or has nothing in it.
pub(crate) fn word(path: &Path) -> Result<String, String> {
    let text = String::from_utf8(bytes(path)?).map_err(|_| format!("{}: no UTF-8", path.display()))?;
    let word = text.trim_end_matches(['\r', '\n']);
    if word.is_empty() || word.contains('\n') {
        return Err(format!("{}: accepted is one line that is not empty", path.display()));
    }
    Ok(word.to_owned())
}

fn bytes(path: &Path) -> Result<Vec<u8>, String> {
    let name = path.display();
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes))
        .map_err(|error| format!("{name}: {error}; name a file that can be read"))?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(format!("{name}: more than {FILE_BYTES_MAX} bytes"));
    }
    Ok(bytes)
}
