//! The head of a request: where it ends, what it contains, and the length of its body. A head that servers could read
//! differently is rejected.

use std::mem::MaybeUninit;

use bytes::{Buf, Bytes, BytesMut};
use http::header::{CONNECTION, CONTENT_LENGTH, EXPECT, HeaderName, HeaderValue, TE, TRANSFER_ENCODING};
use http::{HeaderMap, Method, Request, Uri, Version};

use super::body::RequestDecoder;
use crate::buffer_pool;

/// Largest head.
pub(super) const HEAD_BYTES_MAX: usize = 64 << 10;
/// Maximum fields of a head. HTTP/2 has the same bound.
pub(crate) const FIELDS_MAX: usize = 100;
/// Capacity for fields that the gateway adds.
const FIELDS_ADDED: usize = 8;

/// The problem with a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    Line,
    Field,
    Length,
    Ending,
    TooLarge,
}

impl Flaw {
    /// The flaw, and what would be accepted, as text for the client.
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Flaw::Line => {
                "the request line is not a method, a target and HTTP/1.1 or HTTP/1.0 with one space between them"
            }
            Flaw::Field => {
                "a header field is not a name, a colon and a value; no space stands before the colon, and no line continues another"
            }
            Flaw::Length => {
                "the length of the body is given twice, or in a way that servers read differently; send one Content-Length in digits, or Transfer-Encoding: chunked"
            }
            Flaw::Ending => "a line of the head does not end with CR and LF",
            Flaw::TooLarge => {
                "the header fields are too many or too large; accepted: 100 of them, with 16384 bytes in all"
            }
        }
    }
}

impl From<httparse::Error> for Flaw {
    fn from(error: httparse::Error) -> Self {
        match error {
            httparse::Error::HeaderName | httparse::Error::HeaderValue => Flaw::Field,
            httparse::Error::NewLine => Flaw::Ending,
            httparse::Error::TooManyHeaders => Flaw::TooLarge,
            httparse::Error::Status | httparse::Error::Token | httparse::Error::Version => Flaw::Line,
        }
    }
}

/// The index after the empty line that ends the first head; `None` if the head is incomplete. `searched` holds how
/// many bytes were searched before, so that a head that arrives slowly is not searched again and again. Empty lines
/// before a head come from old clients, mean nothing, and are removed.
///
/// # Errors
/// When the head is too large, or one of its lines ends without CR.
pub(crate) fn end(bytes: &mut BytesMut, searched: &mut usize) -> Result<Option<usize>, Flaw> {
    while bytes.starts_with(b"\r\n") {
        bytes.advance(2);
        *searched = 0;
    }
    let end = end_of_lines(bytes, *searched)?;
    *searched = if end.is_some() { 0 } else { bytes.len() };
    if end.unwrap_or(bytes.len()) > HEAD_BYTES_MAX {
        return Err(Flaw::TooLarge);
    }
    Ok(end)
}

/// The index after the first empty line, a part of which may be among the bytes that were searched before.
///
/// # Errors
/// When a line ends without CR.
pub(super) fn end_of_lines(bytes: &[u8], searched: usize) -> Result<Option<usize>, Flaw> {
    let mut at = searched;
    while let Some(found) = bytes.get(at..).and_then(|rest| rest.iter().position(|&byte| byte == b'\n')) {
        at += found + 1;
        match &bytes[..at] {
            [.., b'\n', b'\r', b'\n'] | b"\r\n" => return Ok(Some(at)),
            [.., b'\r', b'\n'] => {}
            _ => return Err(Flaw::Ending),
        }
    }
    Ok(None)
}

/// A head, and what it says about the bytes after it.
#[derive(Debug)]
pub(crate) struct RequestHead {
    pub(crate) request: Request<()>,
    pub(crate) body: RequestDecoder,
    /// Whether the client wants to keep the connection open.
    pub(crate) is_kept: bool,
    /// Whether the client waits for `100 Continue` before it sends the body.
    pub(crate) is_waiting: bool,
    /// Whether the client accepts trailers.
    pub(crate) takes_trailers: bool,
}

impl RequestHead {
    /// Parses a head without copying it.
    ///
    /// # Errors
    /// When servers could read it differently.
    pub(crate) fn read(text: Bytes) -> Result<Self, Flaw> {
        let mut fields = [const { MaybeUninit::uninit() }; FIELDS_MAX];
        let mut parsed_head = httparse::Request::new(&mut []);
        let parsed = httparse::ParserConfig::default().parse_request_with_uninit_headers(
            &mut parsed_head,
            &text,
            &mut fields,
        )?;
        let (true, Some(method), Some(target)) = (parsed.is_complete(), parsed_head.method, parsed_head.path)
        else {
            return Err(Flaw::Line);
        };
        let mut request = Request::new(());
        *request.method_mut() = Method::from_bytes(method.as_bytes()).map_err(|_| Flaw::Line)?;
        let target = text.slice_ref(target.as_bytes());
        *request.uri_mut() = Uri::from_maybe_shared(target).map_err(|_| Flaw::Line)?;
        let is_10 = parsed_head.version == Some(0);
        let version = if is_10 { Version::HTTP_10 } else { Version::HTTP_11 };
        *request.version_mut() = version;
        let mut found = Found::default();
        *request.extensions_mut() = buffer_pool::take_extensions();
        let headers = request.headers_mut();
        *headers = buffer_pool::take_fields(parsed_head.headers.len() + FIELDS_ADDED);
        for field in parsed_head.headers.iter() {
            let name = HeaderName::from_bytes(field.name.as_bytes()).map_err(|_| Flaw::Field)?;
            found.note(&name, field.value, version)?;
            let value = HeaderValue::from_maybe_shared(text.slice_ref(field.value));
            headers.append(name, value.map_err(|_| Flaw::Field)?);
        }
        let body = found.length.unwrap_or(RequestDecoder::Over);
        Ok(Self {
            is_kept: if is_10 { found.says_kept && !found.says_close } else { !found.says_close },
            is_waiting: found.is_waiting && !is_10 && !body.is_over(),
            takes_trailers: found.takes_trailers && !is_10,
            body,
            request,
        })
    }
}

/// The fields of a head that concern the connection.
#[derive(Default)]
struct Found {
    length: Option<RequestDecoder>,
    says_close: bool,
    says_kept: bool,
    is_waiting: bool,
    takes_trailers: bool,
}

impl Found {
    fn note(&mut self, name: &HeaderName, value: &[u8], version: Version) -> Result<(), Flaw> {
        let found = if name == CONTENT_LENGTH {
            RequestDecoder::of_length(decimal(value).ok_or(Flaw::Length)?)
        } else if name == TRANSFER_ENCODING {
            if version == Version::HTTP_10 || !value.eq_ignore_ascii_case(b"chunked") {
                return Err(Flaw::Length);
            }
            RequestDecoder::CHUNKED
        } else {
            if name == CONNECTION {
                self.says_close |= names(value).any(|name| name.eq_ignore_ascii_case(b"close"));
                self.says_kept |= names(value).any(|name| name.eq_ignore_ascii_case(b"keep-alive"));
            } else if name == EXPECT {
                self.is_waiting |= value.eq_ignore_ascii_case(b"100-continue");
            } else if name == TE {
                self.takes_trailers |= names(value).any(|name| name.eq_ignore_ascii_case(b"trailers"));
            }
            return Ok(());
        };
        // A second length or coding is refused, even if both agree.
        if self.length.replace(found).is_some() { Err(Flaw::Length) } else { Ok(()) }
    }
}

/// The names in a comma-separated list, without the parameters after a semicolon.
fn names(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    let parts = value.split(|&byte| byte == b',');
    parts.filter_map(|part| part.split(|&byte| byte == b';').next()).map(<[u8]>::trim_ascii)
}

/// Parses a length of digits only.
fn decimal(text: &[u8]) -> Option<u64> {
    let is_number = !text.is_empty() && text.len() <= 18 && text.iter().all(u8::is_ascii_digit);
    is_number.then(|| std::str::from_utf8(text).ok()?.parse().ok()).flatten()
}

/// Parses trailers, with the empty line that ends them.
///
/// # Errors
/// When servers could read them differently.
pub(super) fn trailers(text: &Bytes) -> Result<HeaderMap, Flaw> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let httparse::Status::Complete((_, fields)) = httparse::parse_headers(text, &mut fields)? else {
        return Err(Flaw::Field);
    };
    let mut headers = HeaderMap::with_capacity(fields.len());
    for field in fields.iter() {
        let name = HeaderName::from_bytes(field.name.as_bytes()).map_err(|_| Flaw::Field)?;
        let value = HeaderValue::from_maybe_shared(text.slice_ref(field.value));
        headers.append(name, value.map_err(|_| Flaw::Field)?);
    }
    Ok(headers)
}
