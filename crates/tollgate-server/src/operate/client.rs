//! A conversation with a server's admin interface over HTTP/1.1. Every failure says its cause and its cure.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::cli::{GivenToken, ServerArguments};
use crate::telemetry::text::plain;

/// How long to try to connect, and to wait for an answer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Largest answer that is read.
const ANSWER_BYTES_MAX: usize = 16 << 20;

/// A server, and the token for it.
pub(crate) struct Client {
    url: String,
    authority: String,
    address: (String, u16),
    token: GivenToken,
}

impl Client {
    /// The server that the arguments name.
    ///
    /// # Errors
    /// When they name none that can be asked.
    pub(crate) fn new(arguments: &ServerArguments) -> Result<Self, String> {
        let url = arguments.server.trim_end_matches('/').to_owned();
        let accepted = "accepted: --server http://127.0.0.1:8080";
        let uri: Uri = url.parse().map_err(|error| format!("--server {url}: {error}; {accepted}"))?;
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => {
                return Err(format!(
                    "--server {url}: this version operates over plain HTTP, on the server's own machine or through a tunnel; {accepted}"
                ));
            }
            _ => return Err(format!("--server {url}: not a URL; {accepted}")),
        }
        let authority = uri.authority().ok_or_else(|| format!("--server {url}: no host; {accepted}"))?;
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let address = (host, authority.port_u16().unwrap_or(80));
        let token = token(arguments)?;
        Ok(Self { authority: authority.to_string(), address, token, url })
    }

    /// Asks, and reads the whole answer.
    ///
    /// # Errors
    /// When there is none, or it is a refusal.
    pub(crate) async fn call(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value, String> {
        let text = body.map(ToString::to_string).unwrap_or_default();
        self.send(method, path, text.into_bytes(), "application/json").await
    }

    /// The same, with a body that is not JSON.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        body: Vec<u8>,
        kind: &'static str,
    ) -> Result<Value, String> {
        let response = self.ask(method, path, body, kind).await?;
        let text = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect();
        let text = timeout(ANSWER_TIMEOUT, text).await.map_err(|_| self.silent())?;
        let text =
            text.map_err(|error| format!("{}: the answer was cut off: {error}; ask again", self.url))?;
        serde_json::from_slice(&text.to_bytes()).map_err(|_| self.foreign())
    }

    /// Asks for an answer that comes by and by.
    ///
    /// # Errors
    /// When there is none, or it is a refusal.
    pub(crate) async fn open(&self, path: &str) -> Result<Incoming, String> {
        Ok(self.ask("GET", path, Vec::new(), "application/json").await?.into_body())
    }

    async fn ask(
        &self,
        method: &str,
        path: &str,
        body: Vec<u8>,
        kind: &'static str,
    ) -> Result<Response<Incoming>, String> {
        let (host, port) = &self.address;
        let stream = timeout(CONNECT_TIMEOUT, TcpStream::connect((host.as_str(), *port))).await;
        let stream = stream.map_err(|_| self.silent())?.map_err(|error| self.unreachable(&error))?;
        let (mut sender, connection) = http1::handshake::<_, Full<Bytes>>(TokioIo::new(stream))
            .await
            .map_err(|error| format!("{}: {error}; is it a Tollgate server?", self.url))?;
        tokio::spawn(async move {
            // What goes wrong here is told where the answer is awaited.
            let _ = connection.await;
        });
        let mut bearer = HeaderValue::from_str(&format!("Bearer {}", self.token.reveal()))
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
        let response =
            response.map_err(|error| format!("{}: {error}; is it a Tollgate server?", self.url))?;
        if response.status() == StatusCode::OK { Ok(response) } else { Err(self.refused(response).await) }
    }

    /// What a refusal says, and what to do.
    async fn refused(&self, response: Response<Incoming>) -> String {
        let status = response.status();
        let text = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect();
        let problem = match timeout(ANSWER_TIMEOUT, text).await {
            Ok(Ok(text)) => serde_json::from_slice(&text.to_bytes()).unwrap_or(Value::Null),
            _ => Value::Null,
        };
        let (Some(title), Some(detail)) = (problem["title"].as_str(), problem["detail"].as_str()) else {
            return format!("{} (HTTP {status})", self.foreign());
        };
        let cure = match status {
            StatusCode::UNAUTHORIZED => "; give it with --token, TOLLGATE_ADMIN_TOKEN or --token-file FILE",
            _ => "",
        };
        plain(&format!("{title}: {detail}{cure}"))
    }

    fn unreachable(&self, error: &io::Error) -> String {
        let url = &self.url;
        match error.kind() {
            io::ErrorKind::ConnectionRefused => format!(
                "no server listens at {url}; start one with `tollgate serve`, or name another with --server URL"
            ),
            _ => format!("{url} cannot be reached: {error}; check --server URL"),
        }
    }

    fn silent(&self) -> String {
        format!("{} does not answer; check --server URL, or try again", self.url)
    }

    fn foreign(&self) -> String {
        format!("{} does not answer as a Tollgate server of this version; check --server URL", self.url)
    }
}

fn token(arguments: &ServerArguments) -> Result<GivenToken, String> {
    match (&arguments.token, &arguments.token_file) {
        (Some(token), _) => Ok(token.clone()),
        (None, Some(path)) => GivenToken::from_file(path),
        (None, None) => Err(
            "no admin token; the server printed one when it started: give it with --token, TOLLGATE_ADMIN_TOKEN or --token-file FILE"
                .to_owned(),
        ),
    }
}
