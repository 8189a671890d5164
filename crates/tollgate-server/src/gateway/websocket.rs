//! WebSocket over HTTP/2 (RFC 8441). An extended CONNECT is what HTTP/1.1 asks for with a GET and `Upgrade`, so that is made of it before
//! anybody looks: limits, routes and upstreams know one kind of WebSocket. Back at the connection, 101 becomes the 200 of HTTP/2.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http::header::{CONNECTION, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, UPGRADE};
use http::request::Parts;
use http::{HeaderMap, Method, Response, StatusCode};
use hyper::ext::Protocol;

use crate::problem::Turned;
use crate::problem::{Kind, Problem};
use crate::random;

/// The one protocol that is carried.
const WEBSOCKET: &str = "websocket";
/// What RFC 6455 adds to a key.
const SUFFIX: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// A request that was an extended CONNECT; it travels in the request's extensions.
#[derive(Clone, Debug)]
pub(super) struct Extended {
    /// What a server says that has read the key.
    accept: String,
}

/// Makes the request of HTTP/1.1 that an extended CONNECT means. Any other request stays as it is.
///
/// # Errors
/// When it asks for another protocol, or in a form that cannot be sent on.
pub(super) fn turn(request: &mut Parts) -> Result<(), Problem> {
    if request.method != Method::CONNECT {
        return Ok(());
    }
    let Some(protocol) = request.extensions.remove::<Protocol>() else { return Ok(()) };
    if protocol.as_str() != WEBSOCKET {
        let detail = format!("{:.64?}: not carried over HTTP/2; accepted: {WEBSOCKET}", protocol.as_str());
        return Err(Problem::new(Kind::Gateway(Turned::UnknownProtocol), detail));
    }
    if !request.uri.path().starts_with('/') {
        return Err(Problem::invalid("path: not one of a WebSocket; accepted: such as /chat"));
    }
    // It tells a server that answers from one that repeats an old answer; nobody gains by guessing it.
    let key = [random::next().to_be_bytes(), random::next().to_be_bytes()].concat();
    let key = BASE64_STANDARD.encode(key);
    request.method = Method::GET;
    let headers = &mut request.headers;
    headers.remove(SEC_WEBSOCKET_ACCEPT);
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static(WEBSOCKET));
    // What base64 writes can always be sent.
    if let Ok(key) = HeaderValue::from_str(&key) {
        headers.insert(SEC_WEBSOCKET_KEY, key);
    }
    request.extensions.insert(Extended { accept: accept(&key) });
    Ok(())
}

/// What a server answers to a key.
fn accept(key: &str) -> String {
    let text = format!("{key}{SUFFIX}");
    BASE64_STANDARD.encode(ring::digest::digest(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY, text.as_bytes()))
}

impl Extended {
    /// Whether a client would take an answer for the beginning of its WebSocket, as any success is, and it is none.
    pub(super) fn is_misled<B>(&self, response: &Response<B>) -> bool {
        match response.status() {
            StatusCode::SWITCHING_PROTOCOLS => !self.is_granted(response.headers()),
            status => status.is_success(),
        }
    }

    /// Whether the fields of a 101 are those of a server that has read the request.
    fn is_granted(&self, headers: &HeaderMap) -> bool {
        let is = |name, wanted: &str| {
            let mut values = headers.get_all(name).iter();
            values.next().is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(wanted.as_bytes()))
                && values.next().is_none()
        };
        let accepted = headers.get(SEC_WEBSOCKET_ACCEPT);
        is(&UPGRADE, WEBSOCKET)
            && accepted.is_some_and(|accepted| accepted.as_bytes() == self.accept.as_bytes())
    }
}

/// Makes the answer of HTTP/2 of a 101.
pub(super) fn turn_back<B>(response: &mut Response<B>) {
    *response.status_mut() = StatusCode::OK;
    for name in [CONNECTION, UPGRADE, SEC_WEBSOCKET_ACCEPT] {
        response.headers_mut().remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of RFC 6455, 1.3; and nothing else is taken for it.
    #[test]
    fn the_key_is_answered() {
        let extended = Extended { accept: accept("dGhlIHNhbXBsZSBub25jZQ==") };
        let answer = |upgrade: &'static str, accept: &'static str| {
            HeaderMap::from_iter([
                (UPGRADE, HeaderValue::from_static(upgrade)),
                (SEC_WEBSOCKET_ACCEPT, HeaderValue::from_static(accept)),
            ])
        };
        assert!(extended.is_granted(&answer("WebSocket", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=")));
        assert!(!extended.is_granted(&answer("websocket", "S3PPLMBITXAQ9KYGZZHZRBK+XOO=")));
        assert!(!extended.is_granted(&answer("echo", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=")));
        assert!(!extended.is_granted(&HeaderMap::new()));
    }
}
