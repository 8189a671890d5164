//! The client of a server's admin API, over HTTP/1.1 with or without TLS. Every error names its cause and its cure.

use std::error::Error;
use std::fmt::Display;
use std::io;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::secure::SecureClient;
use crate::announcement::{self, Announcement};
use crate::cli::{GivenToken, ServerArguments};
use crate::disk::plain_cause;
use crate::text::plain;

/// Timeouts for connecting, and for an answer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// The address of a server that does not say otherwise.
const USUAL: &str = "http://127.0.0.1:8080";
/// Maximum size of an answer.
const ANSWER_BYTES_MAX: usize = 16 << 20;

/// A server, and the token for it.
pub(crate) struct Client {
    url: String,
    authority: String,
    address: (String, u16),
    secure: Option<SecureClient>,
    /// Without one only the connection is tried, whose failure says more.
    token: Option<GivenToken>,
    /// The other servers that run on this machine, where none was named.
    others: Vec<String>,
}

impl Client {
    /// A client for the server that the arguments name, or for the newest that runs on this machine.
    ///
    /// # Errors
    /// When the arguments name no usable server.
    pub(crate) fn new(arguments: &ServerArguments) -> Result<Self, String> {
        let running = announcement::running();
        let (url, found) = chosen(arguments, &running);
        let accepted = "accepted: --admin http://127.0.0.1:8080, or https://";
        let wrong = |what: &dyn Display| format!("--admin {url}: {what}; {accepted}");
        let uri: Uri = url.parse().map_err(|_| wrong(&"not a URL"))?;
        let authority = uri.authority().ok_or_else(|| wrong(&"no host"))?;
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let trust = &arguments.trust;
        let (secure, port) = match uri.scheme_str() {
            Some("https") => {
                let secure = SecureClient::new(trust, &host);
                (Some(secure.map_err(|error| format!("--admin {url}: {error}"))?), 443)
            }
            // A user who passes certificates would otherwise believe that the server was authenticated.
            Some("http") if trust.ca.is_some() || trust.cert.is_some() => {
                return Err(wrong(&"--ca, --cert and --key mean nothing without TLS"));
            }
            Some("http") => (None, 80),
            _ => return Err(wrong(&"not a URL")),
        };
        let address = (host, authority.port_u16().unwrap_or(port));
        let token = token(arguments, found)?;
        let mut others: Vec<String> = Vec::new();
        if arguments.server.is_none() {
            others.extend(running.iter().skip(1).map(|other| other.admin.clone()));
        }
        Ok(Self { authority: authority.to_string(), address, secure, token, url, others })
    }

    /// The URL of the server.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Which server was chosen, where several run and none was named.
    pub(crate) fn notice(&self) -> Option<String> {
        let servers = match self.others.len() {
            0 => return None,
            1 => "1 more server runs".to_owned(),
            others => format!("{others} more servers run"),
        };
        Some(format!("this is {}, the newest; {servers} here: --admin URL chooses", self.url))
    }

    /// Checks that it is clear which server is meant, for a command that changes it.
    ///
    /// # Errors
    /// When several run, and none was named.
    pub(crate) fn is_meant(&self) -> Result<(), String> {
        if self.others.is_empty() {
            return Ok(());
        }
        let others = self.others.join(", ");
        Err(format!(
            "several servers run here, and this changes one of them; choose with --admin URL: {}, {others}",
            self.url
        ))
    }

    /// Sends a request, and reads the whole answer.
    ///
    /// # Errors
    /// When there is no answer, or it is a refusal.
    pub(crate) async fn call(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, CallError> {
        let text = body.map(ToString::to_string).unwrap_or_default();
        self.send(method, path, text.into_bytes(), "application/json").await
    }

    /// Sends a request with a body of any content type.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        body: Vec<u8>,
        kind: &'static str,
    ) -> Result<Value, CallError> {
        let response = self.ask(method, path, body, kind).await?;
        let text = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect();
        let text = timeout(ANSWER_TIMEOUT, text).await.map_err(|_| self.silent())?;
        let text = text.map_err(|error| {
            format!("{}: the answer was cut off: {}; ask again", self.url, plain_cause(&error))
        })?;
        serde_json::from_slice(&text.to_bytes()).map_err(|_| self.not_tollgate().into())
    }

    /// Opens a streamed answer.
    ///
    /// # Errors
    /// When there is no answer, or it is a refusal.
    pub(crate) async fn open(&self, path: &str) -> Result<Incoming, CallError> {
        Ok(self.ask("GET", path, Vec::new(), "application/json").await?.into_body())
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, String> {
        let (host, port) = &self.address;
        let stream = TcpStream::connect((host.as_str(), *port)).await;
        let stream = stream.map_err(|error| self.unreachable(&error))?;
        match &self.secure {
            None => self.begin(stream).await,
            Some(secure) => {
                let stream = secure.over(stream).await.map_err(|error| self.broken(&error))?;
                self.begin(stream).await
            }
        }
    }

    async fn begin(
        &self,
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    ) -> Result<SendRequest<Full<Bytes>>, String> {
        let begun = http1::handshake(TokioIo::new(stream)).await;
        let (sender, connection) = begun.map_err(|error| self.broken(&error))?;
        tokio::spawn(async move {
            // An error here is reported where the answer is awaited.
            let _ = connection.await;
        });
        Ok(sender)
    }

    async fn ask(
        &self,
        method: &str,
        path: &str,
        body: Vec<u8>,
        kind: &'static str,
    ) -> Result<Response<Incoming>, CallError> {
        let mut sender = timeout(CONNECT_TIMEOUT, self.connect()).await.map_err(|_| self.silent())??;
        let token = self.token.as_ref().ok_or_else(|| self.tokenless())?;
        let mut bearer = HeaderValue::from_str(&format!("Bearer {}", token.reveal()))
            .map_err(|_| "the token has characters that no header can have".to_owned())?;
        bearer.set_sensitive(true);
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, &self.authority)
            .header(AUTHORIZATION, bearer)
            .header(CONTENT_TYPE, kind)
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| format!("the request has no form: {error}"))?;
        let response =
            timeout(ANSWER_TIMEOUT, sender.send_request(request)).await.map_err(|_| self.silent())?;
        let response = response.map_err(|error| self.broken(&error))?;
        let status = response.status();
        if status == StatusCode::OK {
            return Ok(response);
        }
        Err(CallError { text: self.refused(response).await, is_conflict: status == StatusCode::CONFLICT })
    }

    /// The text of a refusal, and its cure.
    async fn refused(&self, response: Response<Incoming>) -> String {
        let status = response.status();
        let text = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect();
        let problem = match timeout(ANSWER_TIMEOUT, text).await {
            Ok(Ok(text)) => serde_json::from_slice(&text.to_bytes()).unwrap_or(Value::Null),
            _ => Value::Null,
        };
        let (Some(title), Some(detail)) = (problem["title"].as_str(), problem["detail"].as_str()) else {
            return format!("{} (HTTP {status})", self.not_tollgate());
        };
        let cure = match status {
            StatusCode::UNAUTHORIZED => {
                "; give the right one with --token, TOLLGATE_ADMIN_TOKEN or --token-file FILE"
            }
            _ => "",
        };
        // The detail names the missing thing, or the place in a file.
        let title = match status {
            StatusCode::NOT_FOUND | StatusCode::CONFLICT => String::new(),
            // A token was sent.
            StatusCode::UNAUTHORIZED => "wrong token: ".to_owned(),
            // Fields that are flags here.
            _ if ["for: ", "since: ", "last: ", "note: "].iter().any(|name| detail.starts_with(name)) => {
                "--".to_owned()
            }
            _ => format!("{title}: "),
        };
        let text = format!("{title}{detail}{cure}");
        // The findings of a policy file are lines.
        text.lines().map(plain).collect::<Vec<_>>().join("\n")
    }

    fn unreachable(&self, error: &io::Error) -> String {
        let url = &self.url;
        match error.kind() {
            io::ErrorKind::ConnectionRefused => format!(
                "no server listens at {url}; start one with `tollgate serve`, or name another with --admin URL"
            ),
            _ => format!("{url} cannot be reached: {}; check --admin URL", plain_cause(error)),
        }
    }

    /// Why a connection broke, by its innermost cause, and the cure.
    fn broken(&self, error: &(dyn Error + 'static)) -> String {
        let mut cause = error;
        while let Some(source) = cause.source() {
            cause = source;
        }
        let cause = plain_cause(&cause);
        let cure = match &self.secure {
            None => "is it a Tollgate server, and without TLS? Else say https://",
            Some(secure) => secure.cure(&cause),
        };
        plain(&format!("{}: {cause}; {cure}", self.url))
    }

    fn tokenless(&self) -> String {
        format!(
            "no admin token for {}; the server printed one when it started: give it with --token, TOLLGATE_ADMIN_TOKEN or \
             --token-file FILE",
            self.url
        )
    }

    fn silent(&self) -> String {
        format!("{} does not answer; check --admin URL, or try again", self.url)
    }

    fn not_tollgate(&self) -> String {
        format!("{} does not answer as a Tollgate server of this version; check --admin URL", self.url)
    }
}

/// Why a call has no result.
#[derive(Debug)]
pub(crate) struct CallError {
    text: String,
    /// Whether the server understood the call and cannot do it, for example because a file has errors.
    pub(crate) is_conflict: bool,
}

impl From<String> for CallError {
    fn from(text: String) -> Self {
        Self { text, is_conflict: false }
    }
}

impl From<CallError> for String {
    fn from(error: CallError) -> Self {
        error.text
    }
}

/// The URL to ask, and what its server announced. Without a named server it is the newest on this machine.
fn chosen<'a>(
    arguments: &ServerArguments,
    running: &'a [Announcement],
) -> (String, Option<&'a Announcement>) {
    let Some(named) = &arguments.server else {
        let newest = running.first();
        return (newest.map_or_else(|| USUAL.to_owned(), |newest| newest.admin.clone()), newest);
    };
    let url = named.trim_end_matches('/').to_owned();
    let url = if url.contains("://") { url } else { format!("http://{url}") };
    let found = running.iter().find(|known| known.admin == url);
    (url, found)
}

/// The token that the arguments name, else the one that the server announced.
fn token(arguments: &ServerArguments, found: Option<&Announcement>) -> Result<Option<GivenToken>, String> {
    let token = match (&arguments.token, &arguments.token_file, found) {
        (Some(token), ..) => Ok(token.clone()),
        (None, Some(path), _) => GivenToken::from_file(path),
        (None, None, Some(Announcement { token: Some(token), .. })) => token.parse(),
        (None, None, Some(Announcement { token_file: Some(path), .. })) => GivenToken::from_file(path),
        (None, None, None) if arguments.server.is_none() => Err(
            "no server of this user runs on this machine; start one with `tollgate serve`, or name another with --admin URL and its \
             token with --token, TOLLGATE_ADMIN_TOKEN or --token-file FILE"
                .to_owned(),
        ),
        (None, None, _) => return Ok(None),
    };
    token.map(Some)
}
