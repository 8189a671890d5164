//! Parses HTTP/1 answers of an upstream strictly: where a head ends, what it contains, and the length of its body. The
//! module is pure: bytes go in, heads and frames come out. `http1_client` has the stream.

use std::mem::MaybeUninit;

use bytes::{Buf, Bytes, BytesMut};
use http::header::{CONNECTION, CONTENT_LENGTH, HeaderName, HeaderValue, TRANSFER_ENCODING};
use http::{HeaderMap, Method, Response, StatusCode, Version};
use hyper::body::Frame;

use super::framing::part;
use crate::buffer_pool;
use crate::cause::Cause;

/// Largest head of an answer, and its maximum number of fields.
pub(crate) const HEAD_BYTES_MAX: usize = 64 << 10;
pub(crate) const HEAD_FIELDS_MAX: usize = 256;
/// Maximum fields of a trailer section.
const FIELDS_MAX: usize = 100;
/// Longest line with a chunk's size, extensions included.
const SIZE_LINE_BYTES_MAX: usize = 256;
/// Maximum hexadecimal digits of a chunk's size.
const SIZE_DIGITS_MAX: usize = 15;
/// Largest trailer section.
const TRAILER_BYTES_MAX: usize = 16 << 10;

/// The problem with a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BrokenAnswer(pub(crate) &'static str);

/// A head with too many bytes or fields.
const TOO_LARGE: BrokenAnswer = BrokenAnswer("the head of its answer is too large");

impl BrokenAnswer {
    /// The cause that clients see.
    pub(crate) fn cause(self) -> Cause {
        if self == TOO_LARGE { Cause::TooLarge } else { Cause::Malformed }
    }
}

/// The head of an answer, and what it says about the bytes after it.
#[derive(Debug)]
pub(crate) struct ResponseHead {
    pub(crate) response: Response<()>,
    pub(crate) body: ResponseDecoder,
    /// Whether the connection may be used again.
    pub(crate) is_kept: bool,
}

/// Takes the first head out of the buffer; `None` if it is incomplete. Informational responses are skipped. `searched`
/// holds how many bytes were searched before, so that a head that arrives slowly is not searched again and again.
///
/// # Errors
/// When the head is malformed, or servers could read it differently.
pub(crate) fn head(
    bytes: &mut BytesMut,
    searched: &mut usize,
    asked: &Method,
) -> Result<Option<ResponseHead>, BrokenAnswer> {
    loop {
        let from = searched.saturating_sub(2); // The end of a head has three bytes at most.
        let end = bytes.get(from..).and_then(end_of_head).map(|end| from + end);
        *searched = if end.is_some() { 0 } else { bytes.len() };
        if end.unwrap_or(bytes.len()) > HEAD_BYTES_MAX {
            return Err(TOO_LARGE);
        }
        let Some(end) = end else { return Ok(None) };
        let response = read(bytes.split_to(end).freeze())?;
        let status = response.status();
        if !status.is_informational() || status == StatusCode::SWITCHING_PROTOCOLS {
            return ResponseHead::new(response, asked).map(Some);
        }
    }
}

/// The index after the empty line that ends a head.
fn end_of_head(bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    while let Some(found) = bytes.get(at..)?.iter().position(|&byte| byte == b'\n') {
        at += found + 1;
        match bytes.get(at..)? {
            [b'\n', ..] => return Some(at + 1),
            [b'\r', b'\n', ..] => return Some(at + 2),
            _ => {}
        }
    }
    None
}

fn read(head: Bytes) -> Result<Response<()>, BrokenAnswer> {
    const BROKEN: BrokenAnswer = BrokenAnswer("the head of its answer is none of HTTP/1");
    let mut fields = [const { MaybeUninit::uninit() }; HEAD_FIELDS_MAX];
    let mut answer = httparse::Response::new(&mut []);
    let parsed =
        httparse::ParserConfig::default().parse_response_with_uninit_headers(&mut answer, &head, &mut fields);
    match parsed {
        Ok(httparse::Status::Complete(_)) => {}
        Err(httparse::Error::TooManyHeaders) => return Err(TOO_LARGE),
        Ok(httparse::Status::Partial) | Err(_) => return Err(BROKEN),
    }
    let mut response = Response::new(());
    *response.status_mut() = answer.code.and_then(|code| StatusCode::from_u16(code).ok()).ok_or(BROKEN)?;
    *response.version_mut() = if answer.version == Some(0) { Version::HTTP_10 } else { Version::HTTP_11 };
    *response.headers_mut() = fields_of(&head, answer.headers).ok_or(BROKEN)?;
    Ok(response)
}

/// Builds a map of fields that share the buffer instead of copying it.
fn fields_of(text: &Bytes, fields: &[httparse::Header<'_>]) -> Option<HeaderMap> {
    // Extra capacity, because the gateway adds fields before it passes the answer on.
    let mut headers = buffer_pool::take_fields(fields.len() + 8);
    for field in fields {
        let name = HeaderName::from_bytes(field.name.as_bytes()).ok()?;
        let value = HeaderValue::from_maybe_shared(text.slice_ref(field.value)).ok()?;
        headers.append(name, value);
    }
    Some(headers)
}

impl ResponseHead {
    fn new(mut response: Response<()>, asked: &Method) -> Result<Self, BrokenAnswer> {
        let (status, version) = (response.status(), response.version());
        let headers = response.headers_mut();
        let mut is_kept = says_kept(headers, version) && status != StatusCode::SWITCHING_PROTOCOLS;
        let is_bodiless = asked == Method::HEAD
            || matches!(
                status,
                StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED | StatusCode::SWITCHING_PROTOCOLS
            );
        let coded = coding(headers)?;
        if coded && version == Version::HTTP_10 {
            return Err(BrokenAnswer("its answer is of HTTP/1.0 and has chunks, which that does not know"));
        }
        if coded && headers.remove(CONTENT_LENGTH).is_some() {
            is_kept = false; // The chunks count, but another server might have used the length.
        }
        let length = length(headers)?;
        // An upstream may send a body that its status forbids, if it announces one. The next answer on that connection
        // could be misread, so it is not reused. This does not concern a `HEAD`, which its answer does not show, or a
        // 304, whose length is that of the body that was not sent.
        let is_odd = match status {
            StatusCode::NO_CONTENT => {
                headers.remove(CONTENT_LENGTH);
                coded || length.is_some_and(|length| length > 0)
            }
            StatusCode::NOT_MODIFIED => coded,
            _ => false,
        };
        is_kept = is_kept && !is_odd;
        let body = match length {
            _ if is_bodiless => ResponseDecoder::Over,
            _ if coded => ResponseDecoder::Chunked(ChunkPart::Size),
            Some(0) => ResponseDecoder::Over,
            Some(length) => ResponseDecoder::Fixed(length),
            None => {
                is_kept = false;
                ResponseDecoder::UntilEnd
            }
        };
        Ok(Self { response, body, is_kept })
    }
}

/// Whether both sides may use the connection again after this answer.
fn says_kept(headers: &HeaderMap, version: Version) -> bool {
    let says = |wanted: &[u8]| {
        let lines = headers.get_all(CONNECTION).iter().map(HeaderValue::as_bytes);
        let mut names = lines.flat_map(|line| line.split(|&byte| byte == b','));
        names.any(|name| name.trim_ascii().eq_ignore_ascii_case(wanted))
    };
    if version == Version::HTTP_10 { says(b"keep-alive") && !says(b"close") } else { !says(b"close") }
}

/// Whether the body is chunked. The gateway requests no other transfer coding, and passes none on.
fn coding(headers: &HeaderMap) -> Result<bool, BrokenAnswer> {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter().map(HeaderValue::as_bytes);
    match (codings.next(), codings.next()) {
        (None, _) => Ok(false),
        (Some(coding), None) if coding.trim_ascii().eq_ignore_ascii_case(b"chunked") => Ok(true),
        _ => Err(BrokenAnswer("its answer has a transfer coding that the request did not ask for")),
    }
}

/// The length of the body. It may be given several times with the same value, and is then reduced to one.
fn length(headers: &mut HeaderMap) -> Result<Option<u64>, BrokenAnswer> {
    const BROKEN: BrokenAnswer = BrokenAnswer("the length of its answer is no number, or several");
    let mut length = None;
    let mut times = 0;
    for line in headers.get_all(CONTENT_LENGTH) {
        for text in line.as_bytes().split(|&byte| byte == b',').map(<[u8]>::trim_ascii) {
            let is_number = matches!(text.len(), 1..=18) && text.iter().all(u8::is_ascii_digit);
            let given =
                std::str::from_utf8(text).ok().filter(|_| is_number).and_then(|text| text.parse().ok());
            let given: u64 = given.ok_or(BROKEN)?;
            if length.replace(given).is_some_and(|before| before != given) {
                return Err(BROKEN);
            }
            times += 1;
        }
    }
    if let Some(length) = length.filter(|_| times > 1) {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
    Ok(length)
}

/// The rest of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResponseDecoder {
    /// This many bytes.
    Fixed(u64),
    Chunked(ChunkPart),
    /// All bytes until the connection ends.
    UntilEnd,
    /// Nothing.
    Over,
}

/// The position in a chunked body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChunkPart {
    /// The line with a chunk's size.
    Size,
    /// This many bytes of a chunk.
    Chunk(u64),
    /// The line ending after a chunk.
    ChunkEnd,
    /// Lines after the last chunk.
    Trailer,
}

/// The next element of a body.
#[derive(Debug)]
pub(crate) enum ResponseElement {
    Frame(Frame<Bytes>),
    /// The body is over.
    Over,
    /// More bytes are needed.
    More,
}

impl ResponseDecoder {
    pub(crate) const fn is_over(&self) -> bool {
        matches!(self, ResponseDecoder::Over)
    }

    /// Bytes left, where that is known.
    pub(crate) const fn left(&self) -> Option<u64> {
        match self {
            ResponseDecoder::Fixed(left) => Some(*left),
            ResponseDecoder::Over => Some(0),
            ResponseDecoder::Chunked(_) | ResponseDecoder::UntilEnd => None,
        }
    }

    /// Takes the next frame out of the buffer.
    ///
    /// # Errors
    /// When the chunks are malformed, or servers could read them differently.
    pub(crate) fn next(&mut self, bytes: &mut BytesMut) -> Result<ResponseElement, BrokenAnswer> {
        match self {
            ResponseDecoder::Over => Ok(ResponseElement::Over),
            ResponseDecoder::UntilEnd if bytes.is_empty() => Ok(ResponseElement::More),
            ResponseDecoder::UntilEnd => Ok(ResponseElement::Frame(Frame::data(bytes.split().freeze()))),
            ResponseDecoder::Fixed(left) => {
                let Some(chunk) = part(bytes, left) else { return Ok(ResponseElement::More) };
                if *left == 0 {
                    *self = ResponseDecoder::Over;
                }
                Ok(ResponseElement::Frame(Frame::data(chunk)))
            }
            ResponseDecoder::Chunked(_) => self.chunked(bytes),
        }
    }

    fn chunked(&mut self, bytes: &mut BytesMut) -> Result<ResponseElement, BrokenAnswer> {
        while let ResponseDecoder::Chunked(position) = self {
            if let ChunkPart::Chunk(left) = position {
                let Some(chunk) = part(bytes, left) else { return Ok(ResponseElement::More) };
                if *left == 0 {
                    *position = ChunkPart::ChunkEnd;
                    self.skip(bytes)?; // The end may be there already, which saves a read.
                }
                return Ok(ResponseElement::Frame(Frame::data(chunk)));
            }
            if self.skip(bytes)? {
                continue;
            }
            let Some(end) =
                end_of_head(bytes).filter(|_| *self == ResponseDecoder::Chunked(ChunkPart::Trailer))
            else {
                return Ok(ResponseElement::More);
            };
            let trailers = trailers(bytes.split_to(end).freeze())?;
            *self = ResponseDecoder::Over;
            return Ok(ResponseElement::Frame(Frame::trailers(trailers)));
        }
        Ok(ResponseElement::Over)
    }

    /// Skips to the next bytes of a chunk, as far as the buffer reaches. Returns whether it moved.
    fn skip(&mut self, bytes: &mut BytesMut) -> Result<bool, BrokenAnswer> {
        const BROKEN: BrokenAnswer = BrokenAnswer("the chunks of its answer are not as they should be");
        let mut has_moved = false;
        while let ResponseDecoder::Chunked(position) = self {
            let next = match position {
                ChunkPart::Chunk(_) => return Ok(has_moved),
                ChunkPart::ChunkEnd => match bytes.as_ref() {
                    [b'\r', b'\n', ..] => Some((2, ResponseDecoder::Chunked(ChunkPart::Size))),
                    [] | [b'\r'] => None,
                    _ => return Err(BROKEN),
                },
                ChunkPart::Size => {
                    match bytes.iter().take(SIZE_LINE_BYTES_MAX).position(|&byte| byte == b'\n') {
                        None if bytes.len() >= SIZE_LINE_BYTES_MAX => return Err(BROKEN),
                        None => None,
                        Some(end) => match size(&bytes[..end]).ok_or(BROKEN)? {
                            0 => Some((end + 1, ResponseDecoder::Chunked(ChunkPart::Trailer))),
                            size => Some((end + 1, ResponseDecoder::Chunked(ChunkPart::Chunk(size)))),
                        },
                    }
                }
                ChunkPart::Trailer => match bytes.as_ref() {
                    [b'\r', b'\n', ..] => Some((2, ResponseDecoder::Over)),
                    text if text.len() >= TRAILER_BYTES_MAX => return Err(BROKEN),
                    _ => None,
                },
            };
            let Some((taken, decoder)) = next else { return Ok(has_moved) };
            bytes.advance(taken);
            *self = decoder;
            has_moved = true;
        }
        Ok(has_moved)
    }

    /// The connection has ended.
    ///
    /// # Errors
    /// When the body is incomplete.
    pub(crate) fn end(&mut self) -> Result<(), BrokenAnswer> {
        match self {
            ResponseDecoder::UntilEnd | ResponseDecoder::Over => {
                *self = ResponseDecoder::Over;
                Ok(())
            }
            ResponseDecoder::Fixed(_) | ResponseDecoder::Chunked(_) => {
                Err(BrokenAnswer("its answer is cut off"))
            }
        }
    }
}

/// Parses the line of a chunk's size, without its LF. Some servers write spaces after the digits.
fn size(line: &[u8]) -> Option<u64> {
    let line = line.strip_suffix(b"\r")?;
    let text = line.split(|&byte| byte == b';').next()?.trim_ascii_end();
    let is_number = matches!(text.len(), 1..=SIZE_DIGITS_MAX) && text.iter().all(u8::is_ascii_hexdigit);
    let is_line = line.iter().all(|byte| matches!(byte, b'\t' | b' '..=b'~' | 0x80..));
    let text = std::str::from_utf8(text).ok().filter(|_| is_number && is_line)?;
    u64::from_str_radix(text, 16).ok()
}

fn trailers(text: Bytes) -> Result<HeaderMap, BrokenAnswer> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    match httparse::parse_headers(&text, &mut fields) {
        Ok(httparse::Status::Complete((_, fields))) => fields_of(&text, fields),
        _ => None,
    }
    .ok_or(BrokenAnswer("the trailers of its answer are not as they should be"))
}

#[cfg(test)]
mod tests;
