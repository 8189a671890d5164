//! A stream of HTTP/1 that lets nothing pass but what [`super::framing`] finds strict. A head passes when all of it may: in the place of one that
//! may not hyper is given a request that whoever answers knows to refuse. In a body it is given bytes that no body has. Then the connection
//! is closed; the rest is never read. hyper gets one request at a time: while that is
//! answered the stream is read on for its end, since a client that has gone must be noticed whatever it had sent ahead.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, ReadBuf};

use super::filtered::{Filter, Filtered};
use super::framing::{Flaw, Found, Scanner};
use crate::http::Phase;

/// What no request has in any place, and the end of a head, without which hyper would wait for more.
const BREAK: &[u8] = b"\0\r\n\r\n";
/// What is given instead of a head that may not pass.
const INSTEAD: &[u8] = b"GET / HTTP/1.1\r\nconnection: close\r\n\r\n";
/// Most bytes that are read ahead of the request that is being answered, and how many at once.
const AHEAD_BYTES_MAX: usize = 16 << 10;
const AHEAD_READ_BYTES: usize = 2 << 10;

const UNDECIDED: u8 = 0;
const REFUSED: u8 = 1;
const GRANTED: u8 = 2;

/// Whether a request for another protocol was granted: told by whoever answers, awaited by the stream.
#[derive(Debug, Default)]
pub(super) struct Turn {
    /// Written and read by the one task of a connection; the lock of the waker orders the rest.
    said: AtomicU8,
    waiting: Mutex<Option<Waker>>,
    /// What is wrong with the head that the present request stands for. Set once, before that request is.
    flaw: OnceLock<Flaw>,
}

impl Turn {
    /// Why the present request is to be refused, if it stands for a head that did not pass.
    pub(super) fn flaw(&self) -> Option<Flaw> {
        self.flaw.get().copied()
    }

    /// A request asks for another protocol. Unless it is granted until the guard is dropped, it is refused.
    pub(super) const fn asked(self: Arc<Self>) -> Asked {
        Asked(self)
    }

    /// Tells the stream that it may have bytes to give on.
    pub(super) fn wake(&self) {
        if let Some(waker) = self.waiting.lock().unwrap_or_else(PoisonError::into_inner).take() {
            waker.wake();
        }
    }

    fn decide(&self, said: u8) {
        self.said.store(said, Ordering::SeqCst);
        self.wake();
    }

    fn poll(&self, context: &Context<'_>) -> Poll<bool> {
        self.wait(context);
        match self.said.load(Ordering::SeqCst) {
            UNDECIDED => Poll::Pending,
            said => Poll::Ready(said == GRANTED),
        }
    }

    fn wait(&self, context: &Context<'_>) {
        *self.waiting.lock().unwrap_or_else(PoisonError::into_inner) = Some(context.waker().clone());
    }
}

/// A request for another protocol that is being answered: the stream learns what became of it whatever happens.
#[derive(Debug)]
pub(super) struct Asked(Arc<Turn>);

impl Asked {
    /// What follows the request is another protocol's.
    pub(super) fn grant(&self) {
        self.0.decide(GRANTED);
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        if self.0.said.load(Ordering::SeqCst) == UNDECIDED {
            self.0.decide(REFUSED);
        }
    }
}

#[derive(Debug)]
enum State {
    Http,
    /// A request asks for another protocol.
    Asked,
    Tunnel,
    /// So much of [`BREAK`] was given.
    Broken(usize),
    /// [`INSTEAD`] was given, and nothing follows it.
    Refused,
}

/// What lets only strict bytes pass.
#[derive(Debug)]
pub(super) struct Strict {
    scanner: Scanner,
    state: State,
    turn: Arc<Turn>,
    phase: Arc<Phase>,
    /// Read already, and not looked at.
    held: BytesMut,
    /// A head that is not yet whole.
    head: BytesMut,
    /// What may pass, and found no room.
    passing: BytesMut,
}

impl Strict {
    /// A stream of HTTP/1 from which only what is strict can be read.
    pub(super) fn before<S>(stream: S, turn: Arc<Turn>, phase: Arc<Phase>) -> Filtered<S, Self> {
        let (held, head, passing) = (BytesMut::new(), BytesMut::new(), BytesMut::new());
        let filter = Self { scanner: Scanner::new(), state: State::Http, turn, phase, held, head, passing };
        Filtered { stream, filter }
    }

    /// Whether nothing came of a request but what was passed on with its end.
    pub(super) fn is_between(&self) -> bool {
        matches!(self.state, State::Http) && self.held.is_empty() && self.scanner.is_between()
    }

    /// Looks at what was read behind `before`, and takes away what may not pass.
    fn check(&mut self, into: &mut ReadBuf<'_>, before: usize) {
        let read = &into.filled()[before..];
        let passed = match self.scanner.next(read) {
            Found::Fine if self.scanner.is_in_head() && !self.scanner.is_between() => {
                self.head.extend_from_slice(read);
                return into.set_filled(before);
            }
            Found::Fine => read.len(),
            Found::Whole(passed) => passed,
            Found::Asks(passed) => {
                self.turn.said.store(UNDECIDED, Ordering::SeqCst);
                self.state = State::Asked;
                passed
            }
            Found::Broken(passed) => {
                self.held = BytesMut::new();
                return match self.scanner.flaw() {
                    None => {
                        into.set_filled(before + passed);
                        self.state = State::Broken(0);
                    }
                    Some(flaw) => {
                        let _ = self.turn.flaw.set(flaw); // Nothing is looked at after the first one.
                        into.set_filled(before);
                        self.passing = BytesMut::from(INSTEAD);
                        self.state = State::Refused;
                    }
                };
            }
        };
        if passed < read.len() {
            let mut held = BytesMut::from(&read[passed..]);
            held.unsplit(std::mem::take(&mut self.held));
            self.held = held;
        }
        if self.head.is_empty() {
            return into.set_filled(before + passed);
        }
        self.passing = std::mem::take(&mut self.head);
        self.passing.extend_from_slice(&read[..passed]);
        into.set_filled(before);
    }

    /// Reads on while a request is being answered: what comes is kept, and only the end, an error, or a client that is too slow is told.
    fn ahead<S: AsyncRead + Unpin>(
        &mut self,
        stream: &mut S,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let mut bytes = [0; AHEAD_READ_BYTES];
        while self.held.len() < AHEAD_BYTES_MAX {
            let mut read = ReadBuf::new(&mut bytes);
            match Pin::new(&mut *stream).poll_read(context, &mut read) {
                Poll::Ready(Ok(())) if !read.filled().is_empty() => {
                    self.held.extend_from_slice(read.filled());
                }
                Poll::Ready(ended) => return Poll::Ready(ended),
                Poll::Pending => break,
            }
        }
        if !self.held.is_empty() {
            self.turn.wait(context); // The stream below may never move again, and has no say in when the answer is over.
        }
        Poll::Pending
    }

    /// Gives hyper what it cannot take for a request, and then the end.
    fn give_break(&mut self, into: &mut ReadBuf<'_>) {
        if let State::Broken(given) = &mut self.state {
            let rest = &BREAK[*given..];
            let taken = rest.len().min(into.remaining());
            into.put_slice(&rest[..taken]);
            *given += taken;
        }
    }
}

/// Gives of what was read before as much as there is room for.
fn give(bytes: &mut BytesMut, into: &mut ReadBuf<'_>) {
    let taken = bytes.len().min(into.remaining());
    into.put_slice(&bytes[..taken]);
    bytes.advance(taken);
}

impl<S: AsyncRead + Unpin> Filter<S> for Strict {
    fn poll_read(
        &mut self,
        stream: &mut S,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        loop {
            if !self.passing.is_empty() {
                give(&mut self.passing, into);
                return Poll::Ready(Ok(()));
            }
            if let State::Asked = self.state {
                match self.turn.poll(context) {
                    Poll::Pending => return self.ahead(stream, context),
                    Poll::Ready(true) => self.state = State::Tunnel,
                    Poll::Ready(false) => self.state = State::Http,
                }
            }
            match self.state {
                State::Refused => return Poll::Pending, // The answer is under way, and the end after it.
                State::Broken(_) => {
                    self.give_break(into);
                    return Poll::Ready(Ok(()));
                }
                State::Http if self.scanner.is_between() && self.phase.is_answering() => {
                    return self.ahead(stream, context);
                }
                _ if !self.held.is_empty() => give(&mut self.held, into),
                _ => match Pin::new(&mut *stream).poll_read(context, into) {
                    Poll::Ready(Ok(())) if into.filled().len() > before => {}
                    other => return other,
                },
            }
            if let State::Http = self.state {
                self.check(into, before);
            }
            if into.filled().len() > before {
                return Poll::Ready(Ok(()));
            }
            // Nothing may pass yet, which would be taken for the end.
        }
    }
}
