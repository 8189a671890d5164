//! The refusal of a gRPC call: a status in headers alone, with details that say when to retry.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD_NO_PAD as BASE64;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use prost::Message;
use tollgate::{Reason, Ticks};

const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");
/// When a client may retry automatically; a negative value forbids it.
const PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

/// The gRPC status code of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    InvalidArgument = 3,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    Unavailable = 14,
}

impl Code {
    /// The code of a refusal.
    pub(crate) const fn of(reason: Reason) -> Self {
        match reason {
            Reason::Quota | Reason::Blocked | Reason::Penalty => Code::ResourceExhausted,
            Reason::Cost | Reason::Fault => Code::InvalidArgument,
            Reason::Forbidden => Code::PermissionDenied,
            Reason::Unavailable => Code::Unavailable,
        }
    }
}

/// The HTTP status for the status of a call, as the gRPC documentation maps them.
pub(crate) const fn http_status(code: u16) -> u16 {
    match code {
        0 => 200,
        1 => 499,
        3 | 9 | 11 => 400,
        4 => 504,
        5 => 404,
        6 | 10 => 409,
        7 => 403,
        8 => 429,
        12 => 501,
        14 => 503,
        16 => 401,
        _ => 500,
    }
}

/// `google.rpc.Status`.
#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(message, repeated, tag = "3")]
    details: Vec<Any>,
}

/// `google.protobuf.Any`.
#[derive(Clone, PartialEq, Message)]
struct Any {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

/// `google.rpc.RetryInfo`.
#[derive(Clone, PartialEq, Message)]
struct RetryInfo {
    #[prost(message, optional, tag = "1")]
    retry_delay: Option<Delay>,
}

/// `google.protobuf.Duration`.
#[derive(Clone, Copy, PartialEq, Message)]
struct Delay {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

/// `google.rpc.QuotaFailure`.
#[derive(Clone, PartialEq, Message)]
struct QuotaFailure {
    #[prost(message, repeated, tag = "1")]
    violations: Vec<Violation>,
}

#[derive(Clone, PartialEq, Message)]
struct Violation {
    #[prost(string, tag = "1")]
    subject: String,
    #[prost(string, tag = "2")]
    description: String,
}

fn any(name: &str, message: &impl Message) -> Any {
    Any { type_url: format!("type.googleapis.com/google.rpc.{name}"), value: message.encode_to_vec() }
}

/// The protocol of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http,
    Grpc,
}

impl Protocol {
    /// The protocol of the request with these headers.
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        if is_call(headers) { Protocol::Grpc } else { Protocol::Http }
    }
}

/// Whether a request is a gRPC call.
pub(crate) fn is_call(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

/// Whether a response is the answer to a gRPC call, which has a status of its own. gRPC-Web has it in the body, which is
/// not read.
pub(crate) fn is_answer(head: &http::response::Parts) -> bool {
    let kind = head.headers.get(CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    let rest = kind.strip_prefix(b"application/grpc");
    head.status == http::StatusCode::OK
        && rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';' | b' ')))
}

/// The status of a call, if it is present. An invalid one is `UNKNOWN`.
pub(crate) fn status(headers: &HeaderMap) -> Option<u16> {
    let status = headers.get(STATUS)?;
    Some(status.to_str().ok().and_then(|status| status.trim().parse().ok()).unwrap_or(2))
}

/// Whether a status means that the service failed, as a 5xx does.
pub(crate) const fn is_server_error(code: u16) -> bool {
    // UNKNOWN, DEADLINE_EXCEEDED, UNIMPLEMENTED, INTERNAL, UNAVAILABLE, DATA_LOSS, and undefined codes.
    matches!(code, 2 | 4 | 12..=15 | 17..)
}

/// The timeout of the caller: at most eight digits, and a unit.
pub(crate) fn timeout(headers: &HeaderMap) -> Option<Ticks> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let count: u64 = digits.parse().ok().filter(|_| digits.len() <= 8)?;
    let micros = match unit {
        "H" => count.saturating_mul(3_600_000_000),
        "M" => count.saturating_mul(60_000_000),
        "S" => count.saturating_mul(1_000_000),
        "m" => count.saturating_mul(1_000),
        "u" => count,
        "n" => count / 1_000,
        _ => return None,
    };
    Some(Ticks::from_micros(micros))
}

/// Writes the headers of a refused call. Every caller may see the `title`; pass a `cause` only if the caller may see it.
pub(crate) fn write(
    headers: &mut HeaderMap,
    code: Code,
    title: &str,
    retry: Option<Ticks>,
    cause: Option<&str>,
) {
    let mut details = Vec::new();
    if let Some(wait) = retry {
        details.push(any("RetryInfo", &RetryInfo { retry_delay: Some(delay(wait)) }));
    }
    if let Some(cause) = cause {
        let violation = Violation { subject: cause.to_owned(), description: title.to_owned() };
        details.push(any("QuotaFailure", &QuotaFailure { violations: vec![violation] }));
    }
    let status = Status { code: code as i32, message: title.to_owned(), details };
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(STATUS, HeaderValue::from(code as u16));
    let mut text = |name: HeaderName, value: &str| {
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(name, value);
        }
    };
    text(MESSAGE, &escaped(title));
    text(DETAILS, &BASE64.encode(status.encode_to_vec()));
    match retry {
        Some(wait) => text(PUSHBACK, &wait.ceil_millis().to_string()),
        None => text(PUSHBACK, "-1"),
    }
}

fn delay(wait: Ticks) -> Delay {
    let micros = wait.as_micros();
    let seconds = i64::try_from(micros / 1_000_000).unwrap_or(i64::MAX);
    let nanos = i32::try_from(micros % 1_000_000 * 1_000).unwrap_or(0);
    Delay { seconds, nanos }
}

/// Percent-encodes a message for a header.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => out.push(char::from(byte)),
            _ => {
                out.push('%');
                for digit in [byte >> 4, byte & 15] {
                    out.push(char::from_digit(u32::from(digit), 16).unwrap_or('0').to_ascii_uppercase());
                }
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_percent_encoded() {
        assert_eq!(escaped("50 % é\n"), "50 %25 %C3%A9%0A");
    }
}
