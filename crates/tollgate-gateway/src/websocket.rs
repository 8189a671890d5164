//! WebSocket over HTTP/2 (RFC 8441). An extended CONNECT means the same as a GET with `Upgrade` in HTTP/1.1. The
//! gateway turns it into that first, so that limits, routes and upstreams see one kind of WebSocket. At the connection,
//! 101 becomes the 200 of HTTP/2 again.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http::header::{CONNECTION, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, UPGRADE};
use http::request::Parts;
use http::{HeaderMap, Method, Response, StatusCode};
use hyper::ext::Protocol;

use crate::problem::{Kind, Problem};
use crate::random;

/// The only protocol that the gateway carries so.
const WEBSOCKET: &str = "websocket";
/// The suffix that RFC 6455 appends to a key.
const SUFFIX: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// Marks a request that was an extended CONNECT. It travels in the request's extensions.
#[derive(Clone, Debug)]
pub(crate) struct Extended {
    /// The expected `Sec-WebSocket-Accept`.
    accept: String,
}

/// Turns an extended CONNECT into the equivalent HTTP/1.1 request. Any other request stays as it is.
///
/// # Errors
/// When it asks for another protocol, or cannot be sent on in this form.
pub(crate) fn turn(request: &mut Parts) -> Result<(), Problem> {
    if request.method != Method::CONNECT {
        return Ok(());
    }
    let Some(protocol) = request.extensions.remove::<Protocol>() else { return Ok(()) };
    if protocol.as_str() != WEBSOCKET {
        let detail = format!("{:.64?}: not carried over HTTP/2; accepted: {WEBSOCKET}", protocol.as_str());
        return Err(Problem::new(Kind::UnknownProtocol, detail));
    }
    if !request.uri.path().starts_with('/') {
        return Err(Problem::invalid("path: not one of a WebSocket; accepted: such as /chat"));
    }
    // The key distinguishes a fresh answer from a replayed one. An attacker gains nothing by guessing it.
    let key = [random::next().to_be_bytes(), random::next().to_be_bytes()].concat();
    let key = BASE64_STANDARD.encode(key);
    request.method = Method::GET;
    let headers = &mut request.headers;
    headers.remove(SEC_WEBSOCKET_ACCEPT);
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static(WEBSOCKET));
    // Base64 is always a valid header value.
    if let Ok(key) = HeaderValue::from_str(&key) {
        headers.insert(SEC_WEBSOCKET_KEY, key);
    }
    request.extensions.insert(Extended { accept: accept(&key) });
    Ok(())
}

/// The `Sec-WebSocket-Accept` for a key.
fn accept(key: &str) -> String {
    let text = format!("{key}{SUFFIX}");
    BASE64_STANDARD.encode(ring::digest::digest(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY, text.as_bytes()))
}

impl Extended {
    /// Whether a client would take an answer for the start of its WebSocket, as it does with any success, though it is
    /// not.
    pub(crate) fn is_misled<B>(&self, response: &Response<B>) -> bool {
        match response.status() {
            StatusCode::SWITCHING_PROTOCOLS => !self.is_granted(response.headers()),
            status => status.is_success(),
        }
    }

    /// Whether the fields of a 101 come from a server that has read the request.
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

/// Turns a 101 into the answer of HTTP/2.
pub(crate) fn turn_back<B>(response: &mut Response<B>) {
    *response.status_mut() = StatusCode::OK;
    for name in [CONNECTION, UPGRADE, SEC_WEBSOCKET_ACCEPT] {
        response.headers_mut().remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of RFC 6455, 1.3. No other value is accepted.
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
