//! The stream between a client's socket and its HTTP reader. The first bytes decide which protocol the client speaks.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf};

use crate::filtered::{Filter, Filtered};
use crate::listen::Stream;

/// Maximum bytes that are read at once to detect the protocol.
const BEGINNING_BYTES_MAX: usize = 24;

/// A stream of which some bytes were read to detect the protocol.
pub(crate) type Prefixed = Filtered<Stream, Prefix>;

/// The bytes that were read, and must be read again.
#[derive(Debug)]
pub(crate) struct Prefix(Vec<u8>);

impl Prefixed {
    pub(crate) const fn new(stream: Stream) -> Self {
        Self { stream, filter: Prefix(Vec::new()) }
    }

    /// The stream, and the bytes of it that were read.
    pub(crate) fn into_parts(self) -> (Stream, Vec<u8>) {
        (self.stream, self.filter.0)
    }

    /// Whether the stream begins with these bytes. Reads no more than it needs to decide.
    pub(crate) async fn begins_with(&mut self, wanted: &[u8]) -> io::Result<bool> {
        let mut bytes = [0; BEGINNING_BYTES_MAX];
        while self.filter.0.len() < wanted.len() {
            let left = wanted.len() - self.filter.0.len();
            let read = self.stream.read(&mut bytes[..left.min(BEGINNING_BYTES_MAX)]).await?;
            self.filter.0.extend_from_slice(&bytes[..read]);
            if read == 0 || !wanted.starts_with(&self.filter.0) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl<S: AsyncRead + Unpin> Filter<S> for Prefix {
    fn poll_read(
        &mut self,
        stream: &mut S,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.0.is_empty() {
            return Pin::new(stream).poll_read(context, into);
        }
        let taken = self.0.len().min(into.remaining());
        into.put_slice(&self.0[..taken]);
        self.0.drain(..taken);
        Poll::Ready(Ok(()))
    }
}
