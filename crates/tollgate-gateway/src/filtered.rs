//! A stream that is read through a filter and written directly. All code that inspects the bytes of a client uses it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Inspects or changes the bytes that are read from a stream.
pub(crate) trait Filter<S> {
    /// Reads from the stream, and returns the bytes that may pass.
    fn poll_read(
        &mut self,
        stream: &mut S,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>>;

    /// These bytes were written to the stream.
    fn wrote(&mut self, _: &[u8]) {}
}

/// A stream and its filter.
#[derive(Debug)]
pub(crate) struct Filtered<S, F> {
    pub(crate) stream: S,
    pub(crate) filter: F,
}

impl<S: Unpin, F: Filter<S> + Unpin> AsyncRead for Filtered<S, F> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { stream, filter } = self.get_mut();
        filter.poll_read(stream, context, into)
    }
}

impl<S: AsyncWrite + Unpin, F: Filter<S> + Unpin> AsyncWrite for Filtered<S, F> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let Self { stream, filter } = self.get_mut();
        let written = Pin::new(stream).poll_write(context, bytes);
        if let Poll::Ready(Ok(length)) = written {
            filter.wrote(bytes.get(..length).unwrap_or(bytes));
        }
        written
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
        let Self { stream, filter } = self.get_mut();
        let written = Pin::new(stream).poll_write_vectored(context, bytes);
        if let Poll::Ready(Ok(length)) = written {
            let mut left = length;
            for part in bytes {
                let taken = left.min(part.len());
                filter.wrote(part.get(..taken).unwrap_or(part));
                left -= taken;
            }
        }
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
