//! Asks another node's admin interface. Only addresses from the store are asked, and redirects are not followed. An
//! answer counts only if it comes from the node that was meant, proves that this node knows the operator's token, and
//! was not changed on the way. The same holds for the reason of a refusal.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::ServerName;
use tollgate::Timestamp;

use super::roster::NodeView;
use super::signature::{AskedFor, NodeKey, NodeSignature, Nonce, StreamProofs};
use crate::disk::plain_cause;
use crate::text::plain;
use crate::tls::{self, TlsFiles};

/// The header in which a node says who it is.
pub(crate) const NODE_HEADER: &str = "tollgate-node";
/// Maximum size of a problem.
const PROBLEM_BYTES_MAX: usize = 64 << 10;
/// Maximum length of another node's words in a problem, in characters.
const WORDS_CHARS_MAX: usize = 200;

/// How long a node may take to answer, and how much it may send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AnswerLimits {
    pub(crate) timeout: Duration,
    pub(crate) bytes_max: usize,
}

impl AnswerLimits {
    /// Those of a view that an operator waits for.
    pub(crate) const VIEW: Self = Self { timeout: Duration::from_secs(1), bytes_max: 4 << 20 };

    fn silent(self) -> String {
        match self.timeout.as_secs() {
            1 => "it does not answer within a second".to_owned(),
            seconds => format!("it does not answer within {seconds} seconds"),
        }
    }
}

/// The files by which nodes trust each other over TLS.
#[derive(Clone, Copy)]
pub(crate) struct PeerTrust<'a> {
    /// The CA of the nodes' certificates.
    pub(crate) authorities: &'a Path,
    /// The certificate of this node, for nodes that ask for one.
    pub(crate) own: Option<&'a TlsFiles>,
}

/// Asks other nodes.
#[derive(Default)]
pub(crate) struct PeerClient {
    tls: Option<TlsConnector>,
}

/// A question to a node, with the key of the operator's token.
#[derive(Clone)]
pub(crate) struct PeerRequest {
    pub(crate) method: &'static str,
    /// The path and the query.
    pub(crate) path: String,
    pub(crate) body: Bytes,
    pub(crate) key: NodeKey,
}

impl PeerClient {
    /// A client that trusts nodes by these files.
    ///
    /// # Errors
    /// When a file has the wrong content.
    pub(crate) fn new(trust: Option<PeerTrust<'_>>) -> Result<Self, String> {
        let Some(PeerTrust { authorities, own }) = trust else { return Ok(Self::default()) };
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let builder = builder.with_protocol_versions(tls::FROM_12).map_err(|error| error.to_string())?;
        let builder = builder.with_root_certificates(tls::authorities(authorities)?);
        let mut config = match own {
            Some(files) => {
                let certificates = tls::certificates(&files.certificate)?;
                let pair = builder.with_client_auth_cert(certificates, tls::key(&files.key)?);
                pair.map_err(|error| format!("{}: {error}", files.certificate.display()))?
            }
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = tls::AlpnProtocol::Http.protocols();
        Ok(Self { tls: Some(TlsConnector::from(Arc::new(config))) })
    }

    /// Asks a node, and reads its answer.
    ///
    /// # Errors
    /// Why there is no answer, in a few words.
    pub(crate) async fn ask(
        &self,
        node: &NodeView,
        question: &PeerRequest,
        now: Timestamp,
        limits: AnswerLimits,
    ) -> Result<Value, String> {
        let answered = async {
            let text =
                self.respond(node, question, now).await?.document(&question.key, limits.bytes_max).await?;
            serde_json::from_slice(&text).map_err(|_| "its answer is not JSON".to_owned())
        };
        timeout(limits.timeout, answered).await.unwrap_or_else(|_| Err(limits.silent()))
    }

    /// Opens a streamed answer of a node.
    ///
    /// # Errors
    /// As [`PeerClient::ask`].
    pub(crate) async fn open(
        &self,
        node: &NodeView,
        question: &PeerRequest,
        now: Timestamp,
    ) -> Result<PeerStream, String> {
        let limits = AnswerLimits::VIEW;
        let opened = async { self.respond(node, question, now).await?.lines(&question.key).await };
        timeout(limits.timeout, opened).await.unwrap_or_else(|_| Err(limits.silent()))
    }

    async fn respond(
        &self,
        node: &NodeView,
        question: &PeerRequest,
        now: Timestamp,
    ) -> Result<PeerResponse, String> {
        let url =
            node.admin.as_deref().ok_or("it advertises no address: start it with --advertise-admin URL")?;
        let uri: Uri = url.parse().map_err(|_| "it advertises an address that is no URL".to_owned())?;
        let authority = uri.authority().ok_or("it advertises an address without a host")?;
        let mut sender = self.connect(&uri).await?;
        let PeerRequest { method, path, body, key } = question;
        let id = node.id.as_deref().unwrap_or_default();
        let asked = AskedFor { node: id, admin: url, method, path };
        let signed = NodeSignature::new(key, asked, body, Nonce::random()?, now);
        let request = Request::builder()
            .method(*method)
            .uri(path)
            .header(HOST, authority.as_str())
            .header(AUTHORIZATION, signed.header())
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(body.clone()))
            .map_err(|error| format!("the question has no form: {error}"))?;
        let response = sender.send_request(request).await;
        let response = response.map_err(|error| broken(&error, &uri))?;
        let answering = response.headers().get(NODE_HEADER).and_then(|id| id.to_str().ok());
        if answering != node.id.as_deref() {
            return Err(format!("another server answers at {}: check its --advertise-admin", plain(url)));
        }
        Ok(PeerResponse { question: signed, response })
    }

    async fn connect(&self, uri: &Uri) -> Result<SendRequest<Full<Bytes>>, String> {
        let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
        let is_secure = uri.scheme_str() == Some("https");
        if !is_secure && self.tls.is_some() {
            return Err(format!(
                "{uri} is no https:// address, and this node has --fleet-ca, so it asks no other"
            ));
        }
        let port = uri.port_u16().unwrap_or(if is_secure { 443 } else { 80 });
        let stream = TcpStream::connect((host, port)).await;
        let stream = stream.map_err(|error| format!("it cannot be reached: {}", plain_cause(&error)))?;
        if !is_secure {
            return begin(stream).await;
        }
        let connector =
            self.tls.as_ref().ok_or("it speaks TLS, and this node has no --fleet-ca to trust it by")?;
        let name =
            ServerName::try_from(host.to_owned()).map_err(|_| "its host is no name for TLS".to_owned())?;
        let secure = connector.connect(name, stream).await;
        let secure = secure.map_err(|error| match plain_cause(&error) {
            cause if cause.contains("UnknownIssuer") => {
                format!("TLS to it fails: no CA of --fleet-ca has signed its certificate ({cause})")
            }
            cause => format!("TLS to it fails: {cause}"),
        });
        begin(secure?).await
    }
}

/// The response of a node, of which nothing is proven yet.
struct PeerResponse {
    question: NodeSignature,
    response: Response<Incoming>,
}

/// Lines that a node sends as they come, each with its proof.
pub(crate) struct PeerStream {
    pub(crate) body: Incoming,
    pub(crate) proofs: StreamProofs,
}

impl PeerResponse {
    /// The body of an answer, complete and proven.
    ///
    /// # Errors
    /// Why there is none. The node's own words are among it only if they are proven.
    async fn document(self, key: &NodeKey, bytes_max: usize) -> Result<Bytes, String> {
        let Self { question, response } = self;
        let (head, body) = response.into_parts();
        let most = if head.status == StatusCode::OK { bytes_max } else { PROBLEM_BYTES_MAX };
        let body = Limited::new(body, most).collect().await;
        let body = body.map_err(|_| "its answer was cut off".to_owned())?.to_bytes();
        if !question.is_answered(key, &head.headers, head.status.as_u16(), &body) {
            return Err(unproven(head.status));
        }
        if head.status == StatusCode::OK { Ok(body) } else { Err(refused(head.status, &body)) }
    }

    /// The lines of an answer whose head is proven.
    ///
    /// # Errors
    /// As [`PeerResponse::document`].
    async fn lines(self, key: &NodeKey) -> Result<PeerStream, String> {
        if self.response.status() != StatusCode::OK {
            let refused = self.document(key, 0).await;
            return Err(refused.err().unwrap_or_else(|| unproven(StatusCode::OK)));
        }
        if !self.question.is_answered_in_lines(key, self.response.headers()) {
            return Err(unproven(StatusCode::OK));
        }
        let proofs = StreamProofs::new(key.clone(), &self.question);
        Ok(PeerStream { body: self.response.into_body(), proofs })
    }
}

/// Why an answer without a proof is not used. Nothing that it says is repeated.
fn unproven(status: StatusCode) -> String {
    match status {
        StatusCode::OK => {
            "it does not prove its answer, which is not used: it does not know the token, or the answer was \
                           changed on the way"
                .to_owned()
        }
        StatusCode::UNAUTHORIZED => {
            "it refuses the token: the nodes of a fleet need the same tokens and the same version".to_owned()
        }
        status => format!("it answers {status}, and does not prove why"),
    }
}

/// Why a connection broke, by its innermost cause. A node that rejects a certificate closes the connection, and whether
/// its reason arrives is a race.
fn broken(error: &(dyn Error + 'static), uri: &Uri) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    let cause = plain_cause(&cause);
    if uri.scheme_str() == Some("https") {
        return format!(
            "it ended the connection ({cause}): it may not accept the certificate of this node, which must be good for \
             clients and signed by a CA of its --tls-client-ca"
        );
    }
    format!("it ended the connection without an answer ({cause})")
}

async fn begin(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
) -> Result<SendRequest<Full<Bytes>>, String> {
    let begun = http1::handshake(TokioIo::new(stream)).await;
    let (sender, connection) = begun.map_err(|error| format!("it does not speak HTTP: {error}"))?;
    tokio::spawn(async move {
        // An error here is reported where the answer is awaited.
        let _ = connection.await;
    });
    Ok(sender)
}

/// The refusal of a node, which has proven it.
fn refused(status: StatusCode, body: &[u8]) -> String {
    let problem: Value = serde_json::from_slice(body).unwrap_or_default();
    let words: String =
        problem["detail"].as_str().unwrap_or_default().chars().take(WORDS_CHARS_MAX).collect();
    if words.is_empty() {
        format!("it answers {status}")
    } else {
        format!("it answers {status}: {}", plain(&words))
    }
}

#[cfg(test)]
mod tests;
