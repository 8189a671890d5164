//! What is to be written next on a connection of HTTP/1, to either side: a head, a part of a body, and what ends that part, in one call if they
//! are there together.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use http::HeaderMap;
use http::header::{CONTENT_LENGTH, HeaderName};
use tokio::io::AsyncWrite;

/// Parts up to this size are copied behind what is there, so that several go out together; and so much is put together at most.
const JOINED_BYTES_MAX: usize = 4 << 10;
const GATHERED_BYTES_MAX: usize = 16 << 10;

/// What is to be written, in this order.
#[derive(Default)]
pub(super) struct Outbox {
    pub(super) before: BytesMut,
    piece: Bytes,
    after: &'static [u8],
    is_flushed: bool,
}

impl Outbox {
    /// Something is added to what is to be written.
    pub(super) const fn unflushed(&mut self) {
        self.is_flushed = false;
    }

    /// Whether everything was written, and is on its way.
    pub(super) const fn is_flushed(&self) -> bool {
        self.is_flushed
    }

    /// Whether there is a place for another part of a body.
    pub(super) fn takes_more(&self) -> bool {
        self.piece.is_empty() && self.after.is_empty() && self.before.len() < GATHERED_BYTES_MAX
    }

    /// A part of a body with a length.
    pub(super) fn put(&mut self, data: Bytes) {
        if data.len() <= JOINED_BYTES_MAX {
            self.before.extend_from_slice(&data);
        } else {
            self.piece = data;
        }
        self.is_flushed = false;
    }

    /// A part of a body of chunks.
    pub(super) fn put_chunk(&mut self, data: Bytes) {
        if data.is_empty() {
            return;
        }
        write_hex(&mut self.before, data.len());
        self.put(data);
        if self.piece.is_empty() {
            self.before.extend_from_slice(b"\r\n");
        } else {
            self.after = b"\r\n";
        }
    }

    /// The end of a body of chunks.
    pub(super) fn put_last_chunk(&mut self, trailers: &HeaderMap) {
        self.before.extend_from_slice(b"0\r\n");
        write_fields(&mut self.before, trailers, |_| true);
        self.before.extend_from_slice(b"\r\n");
        self.is_flushed = false;
    }

    /// Writes until nothing is left, and everything is on its way. Tells how much was written in `written`.
    pub(super) fn poll_empty<S: AsyncWrite + Unpin>(
        &mut self,
        stream: &mut S,
        written: &mut u64,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            let mut stream = Pin::new(&mut *stream);
            let taken = if !(self.piece.is_empty() && self.after.is_empty()) {
                let all = [&self.before[..], &self.piece[..], self.after].map(IoSlice::new);
                ready!(stream.poll_write_vectored(context, &all))?
            } else if !self.before.is_empty() {
                ready!(stream.poll_write(context, &self.before))?
            } else if !self.is_flushed {
                ready!(stream.as_mut().poll_flush(context))?;
                self.is_flushed = true;
                return Poll::Ready(Ok(()));
            } else {
                return Poll::Ready(Ok(()));
            };
            if taken == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            *written += u64::try_from(taken).unwrap_or(u64::MAX);
            self.advance(taken);
        }
    }

    fn advance(&mut self, written: usize) {
        let first = written.min(self.before.len());
        self.before.advance(first);
        let second = (written - first).min(self.piece.len());
        self.piece.advance(second);
        let third = (written - first - second).min(self.after.len());
        self.after = &self.after[third..];
    }
}

/// The line that tells a chunk's size.
fn write_hex(into: &mut BytesMut, number: usize) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = (usize::BITS - number.leading_zeros()).div_ceil(4).max(1);
    for place in (0..digits).rev() {
        into.extend_from_slice(&[DIGITS[number >> (4 * place) & 15]]);
    }
    into.extend_from_slice(b"\r\n");
}

/// Writes the fields that a question about their names says. The length of the body is told by whoever knows it.
pub(super) fn write_fields(into: &mut BytesMut, fields: &HeaderMap, is_told: impl Fn(&HeaderName) -> bool) {
    for (name, value) in fields {
        if name == CONTENT_LENGTH || !is_told(name) {
            continue;
        }
        let (name, value) = (name.as_str().as_bytes(), value.as_bytes());
        into.reserve(name.len() + value.len() + 4);
        into.extend_from_slice(name);
        into.extend_from_slice(b": ");
        into.extend_from_slice(value);
        into.extend_from_slice(b"\r\n");
    }
}

/// Writes the field that tells the length of a body.
pub(super) fn write_length(into: &mut BytesMut, length: u64) {
    into.extend_from_slice(b"content-length: ");
    into.extend_from_slice(itoa::Buffer::new().format(length).as_bytes());
    into.extend_from_slice(b"\r\n");
}
