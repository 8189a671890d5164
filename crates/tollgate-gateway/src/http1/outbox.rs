//! The bytes to write next on an HTTP/1 connection, to either side: a head, a part of a body, and the end of that part,
//! in one call if they are ready together.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use http::HeaderMap;
use http::header::{CONTENT_LENGTH, HeaderName};
use tokio::io::AsyncWrite;

/// Parts up to this size are copied behind the queued bytes, so that several are written together; and the maximum that
/// is gathered so.
const JOINED_BYTES_MAX: usize = 4 << 10;
const GATHERED_BYTES_MAX: usize = 16 << 10;

/// The bytes to write, in this order.
#[derive(Default)]
pub(crate) struct Outbox {
    pub(crate) before: BytesMut,
    piece: Bytes,
    after: &'static [u8],
    is_flushed: bool,
}

impl Outbox {
    /// Marks that bytes were added.
    pub(crate) const fn unflushed(&mut self) {
        self.is_flushed = false;
    }

    /// Whether everything was written and flushed.
    pub(crate) const fn is_flushed(&self) -> bool {
        self.is_flushed
    }

    /// Whether another part of a body can be queued.
    pub(crate) fn takes_more(&self) -> bool {
        self.piece.is_empty() && self.after.is_empty() && self.before.len() < GATHERED_BYTES_MAX
    }

    /// Queues a part of a body with a known length.
    pub(crate) fn put(&mut self, chunk: Bytes) {
        if chunk.len() <= JOINED_BYTES_MAX {
            self.before.extend_from_slice(&chunk);
        } else {
            self.piece = chunk;
        }
        self.is_flushed = false;
    }

    /// Queues a part of a chunked body.
    pub(crate) fn put_chunk(&mut self, chunk: Bytes) {
        if chunk.is_empty() {
            return;
        }
        write_hex(&mut self.before, chunk.len());
        self.put(chunk);
        if self.piece.is_empty() {
            self.before.extend_from_slice(b"\r\n");
        } else {
            self.after = b"\r\n";
        }
    }

    /// Queues the end of a chunked body.
    pub(crate) fn put_last_chunk(&mut self, trailers: &HeaderMap) {
        self.before.extend_from_slice(b"0\r\n");
        write_fields(&mut self.before, trailers, |_| true);
        self.before.extend_from_slice(b"\r\n");
        self.is_flushed = false;
    }

    /// Writes and flushes until nothing is left. Adds the number of bytes to `written`.
    pub(crate) fn poll_empty<S: AsyncWrite + Unpin>(
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

/// Writes the line with a chunk's size.
fn write_hex(into: &mut BytesMut, number: usize) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = (usize::BITS - number.leading_zeros()).div_ceil(4).max(1);
    for digit in (0..digits).rev() {
        into.extend_from_slice(&[DIGITS[number >> (4 * digit) & 15]]);
    }
    into.extend_from_slice(b"\r\n");
}

/// Writes the fields whose names the predicate accepts. It skips the length of the body, which the caller writes.
pub(crate) fn write_fields(into: &mut BytesMut, fields: &HeaderMap, is_sent: impl Fn(&HeaderName) -> bool) {
    for (name, value) in fields {
        if name == CONTENT_LENGTH || !is_sent(name) {
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

/// Writes `Content-Length`.
pub(crate) fn write_length(into: &mut BytesMut, length: u64) {
    into.extend_from_slice(b"content-length: ");
    into.extend_from_slice(itoa::Buffer::new().format(length).as_bytes());
    into.extend_from_slice(b"\r\n");
}
