//! A stream of HTTP/1 that lets nothing pass but what [`super::framing`] finds strict. Where something is not, hyper is given bytes that no
//! request has, so that it answers 400 and closes the connection; the rest is never read.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

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

/// The stream.
#[derive(Debug)]
pub(super) struct Strict<S> {
    stream: S,
    scanner: Scanner,
    state: State,
    turn: Arc<Turn>,
    /// Read already, and not looked at.
    held: Vec<u8>,
}

impl<S> Strict<S> {
    pub(super) const fn new(stream: S, turn: Arc<Turn>) -> Self {
        Self { stream, scanner: Scanner::new(), state: State::Http, turn, held: Vec::new() }
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

impl<S: AsyncRead + Unpin> AsyncRead for Strict<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = into.filled().len();
        if let State::Asked = this.state {
            match this.turn.poll(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(is_granted) => this.state = if is_granted { State::Tunnel } else { State::Http },
            }
        }
        match this.state {
            State::Broken(_) => {
                this.give_break(into);
                return Poll::Ready(Ok(()));
            }
            _ if !this.held.is_empty() => this.give_held(into),
            _ => match Pin::new(&mut this.stream).poll_read(context, into) {
                Poll::Ready(Ok(())) => {}
                other => return other,
            },
        }
        if let State::Http = this.state {
            this.check(into, before);
            if into.filled().len() == before {
                this.give_break(into); // Nothing passed, which would be taken for the end.
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Strict<S> {
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
