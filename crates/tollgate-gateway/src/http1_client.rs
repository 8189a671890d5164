//! An HTTP/1 connection to an upstream, and one request after the other on it. The caller drives it. It has no task of
//! its own, so that an answer needs no hand-over; only work that goes on after the caller has stopped gets a task.

use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_LENGTH, HOST, TE};
use http::{Method, request};
use hyper::body::{Body as _, Frame};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, Sleep, sleep};

use crate::cause::Cause;
use crate::http1::outbox::{Outbox, write_fields, write_length};
use crate::http1::reply::{self, BrokenAnswer, ResponseDecoder, ResponseElement, ResponseHead};
use crate::listen::UpstreamStream;
use crate::outgoing::Outgoing;
use crate::upload::{Upload, UploadBody};

/// Size of the read buffer: at first, and after several reads that have filled it.
const READ_BYTES: usize = 8 << 10;
const READ_BYTES_MAX: usize = 64 << 10;

/// The first deadline of a new connection's timer.
const TIMER_FIRST: Duration = Duration::from_secs(5);

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum RequestFailure {
    /// Nothing of the request was written.
    Unsent(String),
    /// The connection ended without a byte of an answer.
    Gone(String),
    /// Any other failure.
    Lost(Cause, String),
    /// No answer came in time.
    Late,
}

/// A connection.
pub(crate) struct Http1Connection {
    stream: UpstreamStream,
    /// Bytes that were read and not yet used.
    read: BytesMut,
    /// How many of them were searched for the end of a head.
    searched: usize,
    read_limit: usize,
    outbox: Outbox,
    upload: Sending,
    /// Fires when an answer is late, or earlier. It is kept from one request to the next, so it is hardly ever reset.
    timer: Pin<Box<Sleep>>,
    /// How many bytes of the current request were written, and whether any of its answer was read.
    written: u64,
    has_read: bool,
    /// Whether the head of the answer was read.
    has_answered: bool,
}

/// The progress of the request's body.
enum Sending {
    /// This many bytes are left.
    Fixed(UploadBody, u64),
    Chunked(UploadBody),
    Done,
    /// The upstream takes no more of it. It may have answered already.
    Refused(String),
}

impl Http1Connection {
    pub(crate) fn new(stream: UpstreamStream) -> Box<Self> {
        Box::new(Self {
            stream,
            read: BytesMut::new(),
            searched: 0,
            read_limit: READ_BYTES,
            outbox: Outbox::default(),
            upload: Sending::Done,
            timer: Box::pin(sleep(TIMER_FIRST)),
            written: 0,
            has_read: false,
            has_answered: false,
        })
    }

    /// Whether nothing came while it was idle: neither its end, nor unexpected bytes.
    pub(crate) fn is_fit(&mut self) -> bool {
        self.read.is_empty() && self.poll_fill(&mut Context::from_waker(Waker::noop())).is_pending()
    }

    /// Sends a request, and waits for the head of its answer, at most `timeout` after the last byte was sent. The body
    /// of the request may still be in progress then.
    ///
    /// # Errors
    /// When no answer comes.
    pub(crate) async fn ask(
        &mut self,
        outgoing: &Outgoing,
        authority: &str,
        timeout: Duration,
    ) -> Result<ResponseHead, RequestFailure> {
        let Outgoing { parts, upload, .. } = outgoing;
        (self.written, self.has_read, self.has_answered) = (0, false, false);
        self.upload = begin(&mut self.outbox, parts, upload, authority);
        let begun = Instant::now();
        let mut until = begun + timeout;
        if until < self.timer.deadline() {
            self.timer.as_mut().reset(until);
        }
        std::future::poll_fn(|context| {
            if let Poll::Ready(head) = self.poll_head(context, &parts.method) {
                return Poll::Ready(head);
            }
            while self.timer.as_mut().poll(context).is_ready() {
                if self.timer.deadline() >= until {
                    until = upload.due(begun, timeout);
                    if until <= Instant::now() {
                        return Poll::Ready(Err(RequestFailure::Late));
                    }
                }
                self.timer.as_mut().reset(until);
            }
            Poll::Pending
        })
        .await
    }

    fn poll_head(
        &mut self,
        context: &mut Context<'_>,
        asked: &Method,
    ) -> Poll<Result<ResponseHead, RequestFailure>> {
        loop {
            // Ready or not: the answer may come before the whole request is sent.
            let _ = self.poll_send(context).map_err(|why| RequestFailure::Lost(Cause::HungUp, why))?;
            let head = reply::head(&mut self.read, &mut self.searched, asked);
            if let Some(head) =
                head.map_err(|broken| RequestFailure::Lost(broken.cause(), broken.0.to_owned()))?
            {
                self.has_answered = true;
                return Poll::Ready(Ok(head));
            }
            let why = match ready!(self.poll_fill(context)) {
                Ok(0) => "the connection ended without an answer".to_owned(),
                Ok(_) => {
                    self.has_read = true;
                    continue;
                }
                Err(error) => error.to_string(),
            };
            return Poll::Ready(Err(match &self.upload {
                Sending::Refused(why) if self.written == 0 => RequestFailure::Unsent(why.clone()),
                _ if !self.has_read => RequestFailure::Gone(why),
                _ => RequestFailure::Lost(Cause::HungUp, why),
            }));
        }
    }

    /// Whether the upstream may process the current request, because some of it was written.
    pub(crate) const fn has_asked(&self) -> bool {
        self.written > 0
    }

    /// Closes its sending side, because the client has gone, and waits until the upstream stops. That is when it sends
    /// the head of an answer, or more of one that had begun, or closes its side, too.
    pub(crate) async fn leave(mut self: Box<Self>) {
        (self.upload, self.outbox) = (Sending::Done, Outbox::default());
        let _ = self.stream.shutdown().await; // Where that fails, the connection has ended.
        while let Ok(1..) = std::future::poll_fn(|context| self.poll_fill(context)).await {
            // An informational response is no answer.
            if self.has_answered
                || !matches!(reply::head(&mut self.read, &mut self.searched, &Method::GET), Ok(None))
            {
                return;
            }
        }
    }

    /// Sends as much as the upstream takes. Ready when the whole request is sent, or the upstream takes no more of it.
    ///
    /// # Errors
    /// When the client's body fails.
    pub(crate) fn poll_send(&mut self, context: &mut Context<'_>) -> Result<Poll<()>, String> {
        loop {
            // The first part of a body is written together with the head; each further part waits until the previous
            // one is written.
            let is_waiting = self.outbox.takes_more() && self.poll_upload(context)?.is_pending();
            match self.outbox.poll_empty(&mut self.stream, &mut self.written, context) {
                Poll::Pending => return Ok(Poll::Pending),
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => {
                    self.outbox = Outbox::default();
                    self.upload = Sending::Refused(error.to_string());
                }
            }
            match self.upload {
                Sending::Done | Sending::Refused(_) => return Ok(Poll::Ready(())),
                _ if is_waiting => return Ok(Poll::Pending),
                _ => {}
            }
        }
    }

    /// Polls the next part of the request's body, if there is one.
    fn poll_upload(&mut self, context: &mut Context<'_>) -> Result<Poll<()>, String> {
        let (Sending::Fixed(body, _) | Sending::Chunked(body)) = &mut self.upload else {
            return Ok(Poll::Ready(()));
        };
        match Pin::new(body).poll_frame(context) {
            Poll::Pending => Ok(Poll::Pending),
            Poll::Ready(frame) => {
                let frame = frame.transpose().map_err(|error| error.to_string())?;
                self.queue(frame).map(Poll::Ready)
            }
        }
    }

    /// Queues the next part of the request's body for writing.
    fn queue(&mut self, frame: Option<Frame<Bytes>>) -> Result<(), String> {
        let frame = frame.map(Frame::into_data);
        match (&mut self.upload, frame) {
            (Sending::Fixed(_, left), Some(Ok(chunk))) => {
                *left = left
                    .checked_sub(u64::try_from(chunk.len()).unwrap_or(u64::MAX))
                    .ok_or("the client's body is longer than it says")?;
                if *left == 0 {
                    self.upload = Sending::Done;
                }
                self.outbox.put(chunk);
            }
            (Sending::Fixed(..), Some(Err(_))) => {} // Trailers belong to chunks.
            (Sending::Fixed(..), None) => return Err("the client's body is shorter than it says".to_owned()),
            (Sending::Chunked(_), Some(Ok(chunk))) => self.outbox.put_chunk(chunk),
            (Sending::Chunked(_), ended) => {
                let trailers = ended.and_then(|frame| frame.err()?.into_trailers().ok());
                self.outbox.put_last_chunk(&trailers.unwrap_or_default());
                self.upload = Sending::Done;
            }
            (Sending::Done | Sending::Refused(_), _) => {}
        }
        self.outbox.unflushed();
        Ok(())
    }

    /// Whether the whole request is written.
    pub(crate) const fn is_sent(&self) -> bool {
        matches!(self.upload, Sending::Done) && self.outbox.is_flushed()
    }

    /// The next frame of an answer's body; `None` when it is over.
    pub(crate) fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
        body: &mut ResponseDecoder,
    ) -> Poll<Option<Result<Frame<Bytes>, String>>> {
        loop {
            match body.next(&mut self.read) {
                Ok(ResponseElement::Frame(frame)) => return Poll::Ready(Some(Ok(frame))),
                Ok(ResponseElement::Over) => return Poll::Ready(None),
                Ok(ResponseElement::More) => {}
                Err(BrokenAnswer(why)) => return Poll::Ready(Some(Err(why.to_owned()))),
            }
            let ended = match ready!(self.poll_fill(context)) {
                Ok(0) => body.end().map_err(|BrokenAnswer(why)| why.to_owned()),
                Ok(_) => Ok(()),
                Err(error) => Err(error.to_string()),
            };
            if let Err(why) = ended {
                return Poll::Ready(Some(Err(why)));
            }
        }
    }

    /// Reads the bytes that are there. Returns 0 at the end of the connection.
    fn poll_fill(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut free = self.read.capacity() - self.read.len();
        if free < self.read_limit / 2 {
            self.read.reserve(self.read_limit);
            free = self.read.capacity() - self.read.len();
        }
        let read = ready!(pin!(self.stream.read_buf(&mut self.read)).poll(context))?;
        if read == free {
            self.read_limit = (self.read_limit * 2).min(READ_BYTES_MAX);
        } else if read < self.read_limit / 4 {
            self.read_limit = (self.read_limit / 2).max(READ_BYTES);
        }
        Poll::Ready(Ok(read))
    }
}

/// Writes the head of a request. Returns the body that follows it.
fn begin(outbox: &mut Outbox, parts: &request::Parts, upload: &Upload, authority: &str) -> Sending {
    outbox.unflushed();
    let before = &mut outbox.before;
    before.clear();
    before.extend_from_slice(parts.method.as_str().as_bytes());
    before.extend_from_slice(b" ");
    before.extend_from_slice(parts.uri.path_and_query().map_or("/", |target| target.as_str()).as_bytes());
    before.extend_from_slice(b" HTTP/1.1\r\n");
    write_fields(before, &parts.headers, |_| true);
    if !parts.headers.contains_key(HOST) {
        // A health check names no host and gets the name of the upstream, because every request must name one.
        [b"host: ", authority.as_bytes(), b"\r\n"]
            .into_iter()
            .for_each(|part| before.extend_from_slice(part));
    }
    if parts.headers.contains_key(TE) {
        before.extend_from_slice(b"connection: te\r\n"); // In HTTP/1 the wish is one hop's, and says so.
    }
    let sending = match upload.length().filter(|_| !upload.is_chunked(&parts.headers)) {
        Some(0) => {
            if parts.headers.contains_key(CONTENT_LENGTH) {
                write_length(before, 0);
            }
            Sending::Done
        }
        Some(length) => {
            write_length(before, length);
            Sending::Fixed(upload.attempt_body(), length)
        }
        None => {
            before.extend_from_slice(b"transfer-encoding: chunked\r\n");
            Sending::Chunked(upload.attempt_body())
        }
    };
    before.extend_from_slice(b"\r\n");
    sending
}
