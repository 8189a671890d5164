//! The body of a request: which bytes belong to it, and where it ends. The bytes between chunks are parsed one by one,
//! and a body that servers could read differently is rejected.

use bytes::{Buf, Bytes, BytesMut};
use hyper::body::Frame;

use super::head::{end_of_lines, trailers};

/// Longest line with a chunk's size, extensions included.
const SIZE_LINE_BYTES_MAX: u32 = 256;
/// Maximum hexadecimal digits of a chunk's size.
const SIZE_DIGITS_MAX: u32 = 15;
/// Largest trailer section.
const TRAILER_BYTES_MAX: usize = 16 << 10;

/// The rest of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestDecoder {
    /// Nothing.
    Over,
    /// This many bytes.
    Fixed(u64),
    Chunked(ChunkPosition),
}

/// The position in a chunked body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChunkPosition {
    /// A line with a chunk's size: digits so far, their value, and the length of the line.
    Size {
        digits: u32,
        value: u64,
        length: u32,
        part: SizePart,
    },
    /// This many bytes of a chunk.
    Chunk(u64),
    /// CR, then LF, after a chunk.
    ChunkEnd,
    ChunkEndLf,
    /// Lines after the last chunk.
    Trailer,
}

/// The position in the line of a chunk's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SizePart {
    Digits,
    Extension,
    Lf,
}

const SIZE: ChunkPosition = ChunkPosition::Size { digits: 0, value: 0, length: 0, part: SizePart::Digits };

/// The next element of a body.
#[derive(Debug)]
pub(crate) enum RequestElement {
    Frame(Frame<Bytes>),
    /// The body is over.
    Over,
    /// More bytes are needed.
    More,
}

/// The chunks are malformed, or servers could read them differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BrokenBody;

impl RequestDecoder {
    /// A body of chunks.
    pub(super) const CHUNKED: Self = RequestDecoder::Chunked(SIZE);

    /// A body of this length.
    pub(super) const fn of_length(bytes: u64) -> Self {
        if bytes == 0 { RequestDecoder::Over } else { RequestDecoder::Fixed(bytes) }
    }

    pub(crate) const fn is_over(&self) -> bool {
        matches!(self, RequestDecoder::Over)
    }

    /// Bytes left, where that is known.
    pub(crate) const fn left(&self) -> Option<u64> {
        match self {
            RequestDecoder::Over => Some(0),
            RequestDecoder::Fixed(left) => Some(*left),
            RequestDecoder::Chunked(_) => None,
        }
    }

    /// Takes the next frame out of the buffer.
    ///
    /// # Errors
    /// When the chunks are malformed, or servers could read them differently.
    pub(crate) fn next(&mut self, bytes: &mut BytesMut) -> Result<RequestElement, BrokenBody> {
        match self {
            RequestDecoder::Over => Ok(RequestElement::Over),
            RequestDecoder::Fixed(left) => {
                let Some(chunk) = part(bytes, left) else { return Ok(RequestElement::More) };
                if *left == 0 {
                    *self = RequestDecoder::Over;
                }
                Ok(RequestElement::Frame(Frame::data(chunk)))
            }
            RequestDecoder::Chunked(_) => self.chunked(bytes),
        }
    }

    fn chunked(&mut self, bytes: &mut BytesMut) -> Result<RequestElement, BrokenBody> {
        self.skip(bytes)?;
        match self {
            RequestDecoder::Chunked(ChunkPosition::Chunk(left)) => {
                let Some(chunk) = part(bytes, left) else { return Ok(RequestElement::More) };
                if *left == 0 {
                    *self = RequestDecoder::Chunked(ChunkPosition::ChunkEnd);
                }
                Ok(RequestElement::Frame(Frame::data(chunk)))
            }
            RequestDecoder::Chunked(ChunkPosition::Trailer) => self.trailer(bytes),
            RequestDecoder::Chunked(_) => Ok(RequestElement::More),
            RequestDecoder::Over | RequestDecoder::Fixed(_) => Ok(RequestElement::Over),
        }
    }

    /// Skips to the next bytes of a chunk, or to the trailers, as far as the buffer reaches.
    fn skip(&mut self, bytes: &mut BytesMut) -> Result<(), BrokenBody> {
        let mut at = 0;
        let skipped = loop {
            let RequestDecoder::Chunked(position) = self else { break Ok(()) };
            if matches!(position, ChunkPosition::Chunk(_) | ChunkPosition::Trailer) {
                break Ok(());
            }
            let Some(&byte) = bytes.get(at) else { break Ok(()) };
            match behind(*position, byte) {
                Some(next) => *position = next,
                None => break Err(BrokenBody),
            }
            at += 1;
        };
        bytes.advance(at);
        skipped
    }

    /// Ends the body, once its trailers have come.
    fn trailer(&mut self, bytes: &mut BytesMut) -> Result<RequestElement, BrokenBody> {
        let end = end_of_lines(bytes, 0).map_err(|_| BrokenBody)?;
        if end.unwrap_or(bytes.len()) > TRAILER_BYTES_MAX {
            return Err(BrokenBody);
        }
        let Some(end) = end else { return Ok(RequestElement::More) };
        if end == 2 {
            bytes.advance(end);
            *self = RequestDecoder::Over;
            return Ok(RequestElement::Over);
        }
        let fields = trailers(&Bytes::copy_from_slice(&bytes[..end])).map_err(|_| BrokenBody)?;
        bytes.advance(end);
        *self = RequestDecoder::Over;
        Ok(RequestElement::Frame(Frame::trailers(fields)))
    }
}

/// Takes at most `left` bytes, or `None` if the buffer is empty.
pub(crate) fn part(bytes: &mut BytesMut, left: &mut u64) -> Option<Bytes> {
    if bytes.is_empty() {
        return None;
    }
    let taken = bytes.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
    *left = left.saturating_sub(u64::try_from(taken).unwrap_or(u64::MAX));
    Some(bytes.split_to(taken).freeze())
}

/// The position after a byte between chunks; `None` if the byte is not allowed there.
fn behind(position: ChunkPosition, byte: u8) -> Option<ChunkPosition> {
    match position {
        ChunkPosition::ChunkEnd => (byte == b'\r').then_some(ChunkPosition::ChunkEndLf),
        ChunkPosition::ChunkEndLf => (byte == b'\n').then_some(SIZE),
        ChunkPosition::Size { digits, value, length, part } => size(byte, (digits, value), length, part),
        ChunkPosition::Chunk(_) | ChunkPosition::Trailer => Some(position),
    }
}

/// The next byte of the line with a chunk's size.
fn size(byte: u8, (digits, value): (u32, u64), length: u32, part: SizePart) -> Option<ChunkPosition> {
    if length >= SIZE_LINE_BYTES_MAX {
        return None;
    }
    let on = |digits, value, part| Some(ChunkPosition::Size { digits, value, length: length + 1, part });
    match (part, byte) {
        (SizePart::Digits, b'\r') if digits > 0 => on(digits, value, SizePart::Lf),
        (SizePart::Digits, b';') if digits > 0 => on(digits, value, SizePart::Extension),
        (SizePart::Digits, _) if digits < SIZE_DIGITS_MAX => {
            let digit = char::from(byte).to_digit(16)?;
            on(digits + 1, value << 4 | u64::from(digit), part)
        }
        (SizePart::Extension, b'\r') => on(digits, value, SizePart::Lf),
        (SizePart::Extension, b'\t' | b' '..=b'~') => on(digits, value, part),
        (SizePart::Lf, b'\n') => {
            Some(if value == 0 { ChunkPosition::Trailer } else { ChunkPosition::Chunk(value) })
        }
        _ => None,
    }
}
