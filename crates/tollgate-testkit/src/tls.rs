//! A real TLS client, for certificates made for a test.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned, SupportedProtocolVersion,
};

use crate::pki::{Pair, TestCa};
use crate::program::Server;
/// How a client connects.
pub struct Client<'a> {
    pub trusts: &'a str,
    pub pair: Option<&'a Pair>,
    pub protocols: &'a [&'a [u8]],
    pub versions: &'static [&'static SupportedProtocolVersion],
}

const BOTH: &[&SupportedProtocolVersion] =
    &[&tokio_rustls::rustls::version::TLS13, &tokio_rustls::rustls::version::TLS12];

impl<'a> Client<'a> {
    /// One that trusts an authority, and shows nothing.
    pub fn trusting(authority: &'a TestCa) -> Self {
        Self { trusts: &authority.pem, pair: None, protocols: &[], versions: BOTH }
    }

    /// One that trusts an authority, and shows a certificate.
    pub fn showing(authority: &'a TestCa, pair: &'a Pair) -> Self {
        Self { pair: Some(pair), ..Self::trusting(authority) }
    }

    fn config(&self) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.trusts.as_bytes()).unwrap()).unwrap();
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let builder = builder.with_protocol_versions(self.versions).unwrap().with_root_certificates(roots);
        let mut config = match self.pair {
            None => builder.with_no_client_auth(),
            Some(pair) => {
                let chain = vec![CertificateDer::from_pem_slice(pair.certificate.as_bytes()).unwrap()];
                let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).unwrap();
                builder.with_client_auth_cert(chain, key).unwrap()
            }
        };
        config.alpn_protocols = self.protocols.iter().map(|protocol| protocol.to_vec()).collect();
        config
    }

    /// Connects; the handshake is made with the first bytes.
    pub fn connect(&self, server: &Server) -> Connection {
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let session = ClientConnection::new(Arc::new(self.config()), name).unwrap();
        let stream = server.connect();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Connection(BufReader::new(StreamOwned::new(session, stream)))
    }
}

/// A connection inside TLS.
pub struct Connection(BufReader<StreamOwned<ClientConnection, TcpStream>>);

impl Connection {
    /// Sends a request and reads the answer: its status, and its body.
    pub fn ask(&mut self, method: &str, path: &str, body: &str) -> std::io::Result<(u16, String)> {
        let bytes = crate::http::request(method, path, "Content-Type: application/json\r\n", body.as_bytes());
        self.0.get_mut().write_all(&bytes)?;
        self.0.get_mut().flush()?;
        let mut line = String::new();
        if self.0.read_line(&mut line)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let status = line.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap();
        let mut length = 0;
        loop {
            line.clear();
            self.0.read_line(&mut line)?;
            match line.trim_end().split_once(": ") {
                None => break,
                Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                    length = value.parse().unwrap();
                }
                Some(_) => {}
            }
        }
        let mut body = vec![0; length];
        self.0.read_exact(&mut body)?;
        Ok((status, String::from_utf8(body).unwrap()))
    }

    /// The certificate that the server showed.
    pub fn certificate(&self) -> Vec<u8> {
        self.0.get_ref().conn.peer_certificates().unwrap()[0].to_vec()
    }

    /// The protocol that both sides agreed on.
    pub fn protocol(&self) -> Option<&[u8]> {
        self.0.get_ref().conn.alpn_protocol()
    }
}
