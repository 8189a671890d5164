//! The streams between a client's socket and whoever reads requests from it: one that knows its first bytes, and one that knows when
//! its client has gone.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use crate::http::Phase;
use crate::listen::Stream;

/// Most bytes that are read at once to know what is spoken.
const BEGINNING_BYTES_MAX: usize = 24;
/// How long an answer is awaited for a client that has ended its side.
const END_GRACE: Duration = Duration::from_secs(2);

/// A stream whose client may say that it has no more to ask, and still wait for the answer, for a moment. Who has gone away says
/// the same, and must not keep an upstream busy.
pub(super) struct Lingering {
    stream: Prefixed,
    phase: Arc<Phase>,
    waiting: Option<Pin<Box<Sleep>>>,
}

impl Lingering {
    pub(super) const fn new(stream: Prefixed, phase: Arc<Phase>) -> Self {
        Self { stream, phase, waiting: None }
    }
}

impl AsyncRead for Lingering {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.waiting.is_none() {
            let before = into.filled().len();
            let read = Pin::new(&mut this.stream).poll_read(context, into);
            let is_end = matches!(read, Poll::Ready(Ok(()))) && into.filled().len() == before;
            if !is_end || !this.phase.is_answering() {
                return read;
            }
        }
        // The end, while an answer is awaited: it is told when nobody awaits one, or some time has passed.
        let waiting = this.waiting.get_or_insert_with(|| Box::pin(sleep(END_GRACE)));
        if this.phase.is_answering() && waiting.as_mut().poll(context).is_pending() {
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Lingering {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

/// A stream of which some bytes were read before anybody knew what they are.
pub(super) struct Prefixed {
    prefix: Vec<u8>,
    stream: Stream,
}

impl Prefixed {
    pub(super) const fn new(stream: Stream) -> Self {
        Self { prefix: Vec::new(), stream }
    }

    /// Whether the first bytes are these. Reads no more than it takes to know.
    pub(super) async fn begins_with(&mut self, wanted: &[u8]) -> io::Result<bool> {
        let mut bytes = [0; BEGINNING_BYTES_MAX];
        while self.prefix.len() < wanted.len() {
            let left = wanted.len() - self.prefix.len();
            let read = self.stream.read(&mut bytes[..left.min(BEGINNING_BYTES_MAX)]).await?;
            self.prefix.extend_from_slice(&bytes[..read]);
            if read == 0 || !wanted.starts_with(&self.prefix) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl AsyncRead for Prefixed {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.prefix.is_empty() {
            return Pin::new(&mut this.stream).poll_read(context, into);
        }
        let taken = this.prefix.len().min(into.remaining());
        into.put_slice(&this.prefix[..taken]);
        this.prefix.drain(..taken);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Prefixed {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
