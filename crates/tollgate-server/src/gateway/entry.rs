//! The streams between a client's socket and whoever reads requests from it: one that knows its first bytes, and one that knows when
//! its client has gone.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf};
use tokio::time::{Sleep, sleep};

use super::filtered::{Filter, Filtered};
use crate::http::Phase;
use crate::listen::Stream;

/// Most bytes that are read at once to know what is spoken.
const BEGINNING_BYTES_MAX: usize = 24;
/// How long an answer is awaited for a client that has ended its side.
const END_GRACE: Duration = Duration::from_secs(2);

/// A client may say that it has no more to ask, and still wait for the answer, for a moment. Who has gone away says
/// the same, and must not keep an upstream busy.
pub(super) struct Lingering {
    phase: Arc<Phase>,
    has_ended: bool,
    /// The wait for the answer of a turn: one that was sent ahead of the end has its own.
    waiting: Option<(u32, Pin<Box<Sleep>>)>,
}

impl Lingering {
    pub(super) const fn before<S>(stream: S, phase: Arc<Phase>) -> Filtered<S, Self> {
        Filtered { stream, filter: Self { phase, has_ended: false, waiting: None } }
    }
}

impl<S: AsyncRead + Unpin> Filter<S> for Lingering {
    fn poll_read(
        &mut self,
        stream: &mut S,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.has_ended {
            let before = into.filled().len();
            let read = Pin::new(stream).poll_read(context, into);
            let is_end = matches!(read, Poll::Ready(Ok(()))) && into.filled().len() == before;
            self.has_ended = is_end && self.phase.is_answering();
            if !self.has_ended {
                return read;
            }
        }
        // The end, while an answer is awaited: it is told when nobody awaits one, or some time has passed.
        if !self.phase.is_answering() {
            return Poll::Ready(Ok(()));
        }
        let turn = self.phase.turn();
        if self.waiting.as_ref().is_none_or(|(of, _)| *of != turn) {
            self.waiting = Some((turn, Box::pin(sleep(END_GRACE))));
        }
        self.waiting.as_mut().map_or(Poll::Pending, |(_, waiting)| waiting.as_mut().poll(context).map(Ok))
    }
}

/// A stream of which some bytes were read before anybody knew what they are.
pub(super) type Prefixed = Filtered<Stream, Prefix>;

/// The bytes that were read before, and are to be read again.
#[derive(Debug)]
pub(super) struct Prefix(Vec<u8>);

impl Prefixed {
    pub(super) const fn new(stream: Stream) -> Self {
        Self { stream, filter: Prefix(Vec::new()) }
    }

    /// Bytes that are to be read again, as the next ones.
    pub(super) fn give_back(&mut self, bytes: &[u8]) {
        self.filter.0.extend_from_slice(bytes);
    }

    /// Whether the first bytes are these. Reads no more than it takes to know.
    pub(super) async fn begins_with(&mut self, wanted: &[u8]) -> io::Result<bool> {
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
