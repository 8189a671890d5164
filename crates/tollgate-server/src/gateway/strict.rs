//! A stream of HTTP/1 that lets nothing pass but what [`super::framing`] finds strict. Where something is not, hyper is given bytes that no
//! request has, so that it answers 400 and closes the connection; the rest is never read.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncRead, ReadBuf};

use super::filtered::{Filter, Filtered};
use super::framing::{Found, Scanner};

/// What no request has in any place, and the end of a head, without which hyper would wait for more.
const BREAK: &[u8] = b"\0\r\n\r\n";

const UNDECIDED: u8 = 0;
const REFUSED: u8 = 1;
const GRANTED: u8 = 2;

/// Whether a request for another protocol was granted: told by whoever answers, awaited by the stream.
#[derive(Debug, Default)]
pub(super) struct Turn {
    /// Written and read by the one task of a connection; the lock of the waker orders the rest.
    said: AtomicU8,
    waiting: Mutex<Option<Waker>>,
}

impl Turn {
    /// Tells the stream what the bytes after the request are.
    pub(super) fn decide(&self, is_granted: bool) {
        self.said.store(if is_granted { GRANTED } else { REFUSED }, Ordering::SeqCst);
        if let Some(waker) = self.waiting.lock().unwrap_or_else(PoisonError::into_inner).take() {
            waker.wake();
        }
    }

    fn poll(&self, context: &Context<'_>) -> Poll<bool> {
        *self.waiting.lock().unwrap_or_else(PoisonError::into_inner) = Some(context.waker().clone());
        match self.said.load(Ordering::SeqCst) {
            UNDECIDED => Poll::Pending,
            said => Poll::Ready(said == GRANTED),
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
}

/// What lets only strict bytes pass.
#[derive(Debug)]
pub(super) struct Strict {
    scanner: Scanner,
    state: State,
    turn: Arc<Turn>,
    /// Read already, and not looked at.
    held: Vec<u8>,
}

impl Strict {
    /// A stream of HTTP/1 from which only what is strict can be read.
    pub(super) const fn before<S>(stream: S, turn: Arc<Turn>) -> Filtered<S, Self> {
        let filter = Self { scanner: Scanner::new(), state: State::Http, turn, held: Vec::new() };
        Filtered { stream, filter }
    }

    /// Whether nothing came of a request but what was passed on with its end.
    pub(super) fn is_between(&self) -> bool {
        matches!(self.state, State::Http) && self.held.is_empty() && self.scanner.is_between()
    }

    /// Looks at what was read behind `before`, and takes away what may not pass.
    fn check(&mut self, into: &mut ReadBuf<'_>, before: usize) {
        let read = &into.filled()[before..];
        match self.scanner.scan(read) {
            Found::Fine => {}
            Found::Asks(passed) => {
                self.turn.said.store(UNDECIDED, Ordering::SeqCst);
                let mut held = read[passed..].to_vec();
                held.append(&mut self.held);
                self.held = held;
                into.set_filled(before + passed);
                self.state = State::Asked;
            }
            Found::Broken(passed) => {
                into.set_filled(before + passed);
                self.held = Vec::new();
                self.state = State::Broken(0);
            }
        }
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

    /// Gives what was read before.
    fn give_held(&mut self, into: &mut ReadBuf<'_>) {
        let taken = self.held.len().min(into.remaining());
        into.put_slice(&self.held[..taken]);
        self.held.drain(..taken);
    }
}

impl<S: AsyncRead + Unpin> Filter<S> for Strict {
    fn poll_read(
        &mut self,
        stream: &mut S,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        if let State::Asked = self.state {
            match self.turn.poll(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(is_granted) => self.state = if is_granted { State::Tunnel } else { State::Http },
            }
        }
        match self.state {
            State::Broken(_) => {
                self.give_break(into);
                return Poll::Ready(Ok(()));
            }
            _ if !self.held.is_empty() => self.give_held(into),
            _ => match Pin::new(stream).poll_read(context, into) {
                Poll::Ready(Ok(())) => {}
                other => return other,
            },
        }
        if let State::Http = self.state {
            self.check(into, before);
            if into.filled().len() == before {
                self.give_break(into); // Nothing passed, which would be taken for the end.
            }
        }
        Poll::Ready(Ok(()))
    }
}
