//! A client's connection, shared by its task and the body of its current request: the bytes read ahead, the progress of
//! the body, and whether the client is still there.

use std::io;
use std::mem;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use hyper::body::{Body, SizeHint};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

use super::framing::{self, Flaw, RequestDecoder, RequestElement};
use crate::buffer_pool;
use crate::cause::{BodyError, FramePoll};
use crate::listen::{Stream, TimedStream};

/// Size of the read buffer: at first, and after several reads that have filled it.
const READ_BYTES: usize = 16 << 10;
const READ_BYTES_MAX: usize = 64 << 10;
/// Maximum bytes read ahead of the request that is being answered.
const AHEAD_BYTES_MAX: usize = 16 << 10;
/// Interval of the check for a client that is gone after it sent more than is read ahead.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The interim response to a client that waits before it sends its body.
const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// A connection.
pub(crate) struct ConnectionState {
    stream: TimedStream<Stream>,
    /// Bytes that were read and not yet used, and how many of them were searched for the end of a head.
    read: BytesMut,
    searched: usize,
    read_limit: usize,
    /// The rest of the current request's body, whether its reader still exists, and whether that reader waits for more.
    body: RequestDecoder,
    is_held: bool,
    is_awaited: bool,
    /// The rest of the interim response that must be written before the body is read.
    interim: &'static [u8],
    /// Whether the client has closed its side, and whether further bytes are unusable.
    has_ended: bool,
    is_broken: bool,
    /// The timer for the answer to a client that has closed its sending side. Each request has its own.
    grace: Option<Pin<Box<Sleep>>>,
    /// The timer of the next check of a client that has sent too much to be read ahead.
    looking: Option<Pin<Box<Sleep>>>,
    /// The waker of the connection's task, while the reader of the body reads.
    watcher: Option<Waker>,
}

/// A shared handle of a connection. The lock is held for one read or write, and is hardly ever contended.
#[derive(Clone)]
pub(crate) struct SharedConnection(Arc<Mutex<ConnectionState>>);

impl SharedConnection {
    /// Wraps a connection, of which these bytes were read before.
    pub(crate) fn new(stream: TimedStream<Stream>, begun: &[u8]) -> Self {
        Self(Arc::new(Mutex::new(ConnectionState {
            stream,
            read: BytesMut::from(begun),
            searched: 0,
            read_limit: READ_BYTES,
            body: RequestDecoder::Over,
            is_held: false,
            is_awaited: false,
            interim: &[],
            has_ended: false,
            is_broken: false,
            grace: None,
            looking: None,
            watcher: None,
        })))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, ConnectionState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends the client 100 Continue before the body that it holds back is read.
    pub(crate) fn send_continue(&self) {
        self.lock().interim = CONTINUE;
    }

    /// Makes the body of a request that begins now, for the code that answers it.
    pub(crate) fn coming(&self, body: RequestDecoder) -> Option<IncomingBody> {
        let mut connection = self.lock();
        (connection.grace, connection.looking) = (None, None);
        connection.body = body;
        connection.interim = &[];
        connection.is_held = !body.is_over();
        connection.is_held.then(|| IncomingBody { connection: self.clone(), left: body.left() })
    }
}

impl ConnectionState {
    /// Returns where the next head ends, once all of it is there, or `None` when the connection ends first.
    ///
    /// # Errors
    /// When the bytes are not a head.
    pub(crate) fn poll_head(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<usize>, Flaw>> {
        loop {
            if !self.read.is_empty()
                && let Some(end) = framing::end(&mut self.read, &mut self.searched)?
            {
                return Poll::Ready(Ok(Some(end)));
            }
            match ready!(self.poll_fill(context)) {
                Ok(0) => return Poll::Ready(Ok(None)),
                Ok(_) => {}
                Err(error) => {
                    tracing::debug!(%error, "a connection ended early");
                    return Poll::Ready(Ok(None));
                }
            }
        }
    }

    /// Whether no byte of a request has come.
    pub(crate) fn is_empty(&self) -> bool {
        self.read.is_empty()
    }

    /// Takes the bytes of a head out of the buffer, without those after it.
    pub(crate) fn take_head(&mut self, end: usize) -> Bytes {
        let head = self.read.split_to(end).freeze();
        self.tidy();
        head
    }

    /// Returns the read buffer to the pool if it is empty.
    fn tidy(&mut self) {
        if self.read.is_empty() && self.read_limit == READ_BYTES {
            buffer_pool::give_read(mem::take(&mut self.read));
        }
    }

    /// Watches the client while its request is answered. Ready when the client is gone. What it sends meanwhile is
    /// kept, up to a bound.
    pub(crate) fn poll_gone(&mut self, grace: Duration, context: &mut Context<'_>) -> Poll<()> {
        while !self.has_ended && !self.is_awaited && self.read.len() < AHEAD_BYTES_MAX {
            match self.poll_fill(context) {
                Poll::Pending => break,
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(_)) => return Poll::Ready(()),
            }
        }
        if self.is_held && !self.watcher.as_ref().is_some_and(|watcher| watcher.will_wake(context.waker())) {
            self.watcher = Some(context.waker().clone());
        }
        if !self.has_ended {
            return if self.is_awaited || self.read.len() < AHEAD_BYTES_MAX {
                Poll::Pending
            } else {
                self.poll_look(context)
            };
        }
        // A client may close its sending side and still wait for the answer, so it gets a short time. A client that has
        // gone away looks the same, and must not keep an upstream busy.
        self.grace.get_or_insert_with(|| Box::pin(sleep(grace))).as_mut().poll(context)
    }

    /// The client reads its answer, so it is still there.
    pub(crate) fn is_reading(&mut self) {
        self.grace = None;
    }

    /// Resets the connection, so that the client knows that its answer is incomplete.
    pub(crate) fn reset(&mut self) {
        self.stream.inner().reset();
    }

    /// Checks at intervals whether the connection was reset. Nothing is read now, so an end would not be seen.
    fn poll_look(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let looking = self.looking.get_or_insert_with(|| Box::pin(sleep(LOOK_EVERY)));
        while looking.as_mut().poll(context).is_ready() {
            if self.stream.inner().has_failed() {
                return Poll::Ready(());
            }
            looking.as_mut().reset(Instant::now() + LOOK_EVERY);
        }
        Poll::Pending
    }

    /// Ready when the body of an answered request is over, or its reader is gone. Returns whether another request can
    /// follow.
    pub(crate) fn poll_free(&mut self, context: &mut Context<'_>) -> Poll<bool> {
        self.skip_body();
        if self.is_held && !self.body.is_over() && !self.is_broken {
            self.watcher = Some(context.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(self.body.is_over() && !self.is_broken)
    }

    /// Drops buffered bytes of a body without a reader. Returns whether the body is over or still has a reader.
    pub(crate) fn skip_body(&mut self) -> bool {
        while !self.is_held && !self.is_broken && !self.body.is_over() {
            match self.body.next(&mut self.read) {
                Ok(RequestElement::Frame(_) | RequestElement::Over) => {}
                Ok(RequestElement::More) => return false,
                Err(_) => self.is_broken = true,
            }
        }
        !self.is_broken && (self.is_held || self.body.is_over())
    }

    /// The answer begins, so `100 Continue` is no longer sent. Returns the rest of one that was partly written.
    pub(crate) fn answer_begins(&mut self) -> &'static [u8] {
        let is_begun = self.interim.len() < CONTINUE.len();
        let rest = if is_begun { mem::take(&mut self.interim) } else { &[] };
        // A client that got no `100 Continue` may send its body or not, and must not get one after its answer.
        self.is_broken |= !mem::take(&mut self.interim).is_empty();
        self.grace = None;
        rest
    }

    /// The current request is over, and its answer is written.
    pub(crate) fn turn_ends(&mut self) {
        self.read_limit = READ_BYTES;
        self.watcher = None;
        self.tidy();
    }

    /// Reads and drops bytes, so that a client that still sends can read its answer before the connection is reset.
    /// Returns whether any came.
    pub(crate) fn poll_drop(&mut self, context: &mut Context<'_>) -> Poll<bool> {
        self.read.clear();
        self.poll_fill(context).map(|read| matches!(read, Ok(1..)))
    }

    /// Whether the client may have sent bytes that were not read.
    pub(crate) fn has_unread(&self) -> bool {
        !self.has_ended && (!self.read.is_empty() || !self.body.is_over() || self.is_broken)
    }

    /// The stream, for writing.
    pub(crate) const fn stream(&mut self) -> &mut TimedStream<Stream> {
        &mut self.stream
    }

    /// Reads the bytes that are there. Returns 0 at the end of the connection.
    fn poll_fill(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.has_ended {
            return Poll::Ready(Ok(0));
        }
        if self.read.capacity() == 0 {
            self.read = buffer_pool::take_read();
        }
        let mut read_limit = self.read.capacity() - self.read.len();
        if read_limit < buffer_pool::READ_ROOM_BYTES.max(self.read_limit / 4) {
            self.read.reserve(self.read_limit);
            read_limit = self.read.capacity() - self.read.len();
        }
        let Poll::Ready(read) = pin!(self.stream.read_buf(&mut self.read)).poll(context) else {
            self.tidy();
            return Poll::Pending;
        };
        let read = read?;
        self.has_ended = read == 0;
        if read == read_limit {
            self.read_limit = (self.read_limit * 2).min(READ_BYTES_MAX);
        } else if read < self.read_limit / 4 {
            self.read_limit = (self.read_limit / 2).max(READ_BYTES);
        }
        Poll::Ready(Ok(read))
    }

    /// The next frame of the body.
    fn poll_body(&mut self, context: &mut Context<'_>) -> FramePoll {
        let polled = self.poll_part(context);
        self.is_awaited = polled.is_pending();
        if polled.is_ready() {
            self.wake_watcher(Some(context));
        }
        polled
    }

    fn poll_part(&mut self, context: &mut Context<'_>) -> FramePoll {
        while !self.interim.is_empty() {
            match ready!(Pin::new(&mut self.stream).poll_write(context, self.interim)) {
                Ok(written @ 1..) => self.interim = &self.interim[written..],
                Ok(0) | Err(_) => return Poll::Ready(Some(Err("the client is gone".into()))),
            }
            if self.interim.is_empty() {
                // Inside TLS its bytes may still be buffered. If the flush does not finish, the client gets them with
                // the answer.
                let _ = Pin::new(&mut self.stream).poll_flush(context);
            }
        }
        loop {
            if self.is_broken {
                return Poll::Ready(Some(Err("the chunks are not as they should be".into())));
            }
            match self.body.next(&mut self.read) {
                Ok(RequestElement::Frame(frame)) => return Poll::Ready(Some(Ok(frame))),
                Ok(RequestElement::Over) => return Poll::Ready(None),
                Ok(RequestElement::More) => {}
                Err(_) => {
                    self.is_broken = true;
                    continue;
                }
            }
            match ready!(self.poll_fill(context)) {
                Ok(0) => {
                    self.is_broken = true;
                    return Poll::Ready(Some(Err("the body is cut off".into())));
                }
                Ok(_) => {}
                Err(error) => {
                    (self.is_broken, self.has_ended) = (true, true);
                    return Poll::Ready(Some(Err(error.into())));
                }
            }
        }
    }

    /// Wakes the task of the connection, unless it is the one that is running.
    fn wake_watcher(&mut self, context: Option<&Context<'_>>) {
        let is_own = |watcher: &Waker| context.is_some_and(|context| watcher.will_wake(context.waker()));
        if self.watcher.as_ref().is_some_and(|watcher| !is_own(watcher))
            && let Some(watcher) = self.watcher.take()
        {
            watcher.wake();
        }
    }
}

/// The body of a request that comes on a connection.
pub(crate) struct IncomingBody {
    connection: SharedConnection,
    /// How much of it is left, where that is known.
    left: Option<u64>,
}

impl Body for IncomingBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> FramePoll {
        let this = self.get_mut();
        let mut connection = this.connection.lock();
        let polled = connection.poll_body(context);
        if connection.body.is_over() {
            this.left = Some(0);
        } else if this.left.is_some() {
            this.left = connection.body.left();
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.left == Some(0)
    }

    fn size_hint(&self) -> SizeHint {
        self.left.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

impl Drop for IncomingBody {
    fn drop(&mut self) {
        let mut connection = self.connection.lock();
        (connection.is_held, connection.is_awaited) = (false, false);
        connection.wake_watcher(None);
    }
}

/// Reads from a connection that no longer carries HTTP. The bytes that were read ahead come first.
impl AsyncRead for SharedConnection {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut connection = self.lock();
        if connection.read.is_empty() {
            return Pin::new(connection.stream()).poll_read(context, into);
        }
        let taken = connection.read.len().min(into.remaining());
        into.put_slice(&connection.read[..taken]);
        connection.read.advance(taken);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for SharedConnection {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(self.lock().stream()).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.lock().stream()).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.lock().stream()).poll_shutdown(context)
    }
}
