//! A client's connection of HTTP/1: its requests, and the rest between them. One that rests has neither a parser nor buffers: it is a stream
//! and a timer, so that thousands of them cost next to nothing.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::header::{CONNECTION, HeaderValue};
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, sleep};

use super::arrival::Peer;
use super::body::{Holding, Limited, Watched};
use super::entry::{Lingering, Prefixed};
use super::filtered::Filtered;
use super::framing::Flaw;
use super::own::{self, Asker};
use super::strict::{Strict, Turn};
use super::tunnel::{self, Handed, Tunnel};
use super::{Gateway, HEAD_BUFFER_BYTES};
use crate::http::{Answering, Kind, Patient, Phase, Problem};
use crate::listen::{Stop, stopped};

/// How long a connection waits, once the server was told to stop, for a request that its client has sent already.
const LINGER: Duration = Duration::from_secs(1);
/// How often it is looked whether a connection rests: one that did nothing from one look to the next does.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What lies between a client and whoever reads its requests.
type Stack = Filtered<Patient<Filtered<Prefixed, Lingering>>, Strict>;

/// A connection, whoever reads from it.
#[derive(Clone)]
struct Client {
    phase: Arc<Phase>,
    turn: Arc<Turn>,
    /// Locked by the one task that has it, in one place at a time: it outlives those that read requests from it.
    stack: Arc<Mutex<Stack>>,
}

/// Why nobody reads requests from a connection any more.
enum Turned {
    Ended,
    Rests,
}

/// Serves a connection until either side ends it.
pub(super) async fn serve(stream: Prefixed, gateway: Arc<Gateway>, peer: Peer, mut stop: Stop) {
    let client = Client::new(stream);
    let tunnel = Mutex::new(None::<Tunnel>);
    // Boxed: all of it is given back when the connection rests.
    while let Turned::Rests = Box::pin(client.turns(&gateway, peer, stop.clone(), &tunnel)).await {
        let came = tokio::select! {
            came = client.comes_back() => came,
            () = stopped(&mut stop) => {
                tokio::time::timeout(LINGER, client.comes_back()).await.unwrap_or(false)
            }
        };
        if !came {
            return;
        }
    }
    if let Some(tunnel) = tunnel.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Box::pin(tunnel.carry()).await;
    }
}

impl Client {
    fn new(stream: Prefixed) -> Self {
        let (phase, turn) = (Arc::new(Phase::at(stream.stream.seat())), Arc::new(Turn::default()));
        let stream = Lingering::before(stream, Arc::clone(&phase));
        let stream = Patient::new(stream, Arc::clone(&phase));
        let stack = Strict::before(stream, Arc::clone(&turn), Arc::clone(&phase));
        Self { phase, turn, stack: Arc::new(Mutex::new(stack)) }
    }

    fn stack(&self) -> MutexGuard<'_, Stack> {
        self.stack.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers requests until the connection ends or rests.
    async fn turns(
        &self,
        gateway: &Gateway,
        peer: Peer,
        stop: Stop,
        tunnel: &Mutex<Option<Tunnel>>,
    ) -> Turned {
        let mut told = stop.clone();
        let service = service_fn(|request: Request<Incoming>| {
            let underway = Underway { _answering: self.phase.answering(), turn: Arc::clone(&self.turn) };
            let asked = tunnel::asks(&request).then(|| Arc::clone(&self.turn).asked());
            let (stop, flaw) = (&stop, self.turn.flaw());
            async move {
                let mut response = match flaw {
                    None => gateway.answer(request, peer).await,
                    Some(flaw) => own::refused(&flawed(flaw), Asker::Http).map(Limited::from),
                };
                let begun = Handed::take(&mut response);
                if let (Some(asked), Some(_)) = (&asked, &begun) {
                    asked.grant();
                }
                drop(asked);
                if begun.is_some() {
                    self.phase.leave();
                    *tunnel.lock().unwrap_or_else(PoisonError::into_inner) = begun;
                } else if flaw.is_some() || *stop.borrow() || must_close(&response) {
                    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                }
                Ok::<_, Infallible>(response.map(|body| Holding { body, held: underway }))
            }
        });
        let connection = http1::Builder::new()
            // Patience is the stream's.
            .header_read_timeout(None)
            .max_buf_size(HEAD_BUFFER_BYTES)
            .serve_connection(TokioIo::new(self.clone()), service)
            .with_upgrades();
        let mut connection = pin!(connection);
        let ended = tokio::select! {
            biased;
            ended = connection.as_mut() => ended,
            () = self.rests() => return Turned::Rests,
            () = stopped(&mut told) => match tokio::time::timeout(LINGER, connection.as_mut()).await {
                Ok(ended) => ended,
                Err(_) => {
                    if !self.phase.is_touched() {
                        return Turned::Ended; // A connection opened ahead of need; nobody waits for an answer.
                    }
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            },
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "a connection ended early");
        }
        Turned::Ended
    }

    /// Until nothing was asked and nothing is under way from one look to the next.
    async fn rests(&self) {
        let mut look = pin!(sleep(LOOK_EVERY));
        let mut seen = None;
        loop {
            look.as_mut().await;
            let turn = self.phase.rest().filter(|_| self.is_empty());
            if turn.is_some() && turn == seen {
                return;
            }
            seen = turn;
            look.as_mut().reset(Instant::now() + LOOK_EVERY);
        }
    }

    /// Whether no byte is on its way through here, in either direction.
    fn is_empty(&self) -> bool {
        let stack = self.stack();
        stack.filter.is_between() && !stack.stream.is_writing()
    }

    /// Whether a client asks again after a rest, rather than to end it.
    async fn comes_back(&self) -> bool {
        poll_fn(|context| {
            let mut byte = [0];
            let mut into = ReadBuf::new(&mut byte);
            let mut stack = self.stack();
            let read = ready!(Pin::new(&mut stack.stream).poll_read(context, &mut into));
            let came = read.is_ok() && !into.filled().is_empty();
            if came {
                // Whoever reads requests reads it again.
                stack.stream.inner().stream.give_back(into.filled());
            }
            Poll::Ready(came)
        })
        .await
    }
}

/// Whether what is left of a request is of no use: it was refused for how it is written, or its body did not come.
fn must_close(response: &Response<Limited>) -> bool {
    matches!(response.status().as_u16(), 408 | 414 | 431)
        && response.extensions().get::<super::Own>().is_some()
}

/// What is told to a client whose head did not pass.
fn flawed(flaw: Flaw) -> Problem {
    match flaw {
        Flaw::TooLarge => Problem::new(Kind::Gateway(super::refusal::Turned::FieldsTooLarge), flaw.told()),
        _ => Problem::invalid(flaw.told()),
    }
}

/// A request that is being answered. The next one, if it is there already, is read when this is over.
struct Underway {
    _answering: Answering,
    turn: Arc<Turn>,
}

impl Drop for Underway {
    fn drop(&mut self) {
        // The task that is woken is the one that runs this: it looks when both fields are gone.
        self.turn.wake();
    }
}

impl Watched for Underway {
    fn polled(&mut self, _is_ready: bool) {}
}

impl AsyncRead for Client {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stack()).poll_read(context, into)
    }
}

impl AsyncWrite for Client {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.stack()).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stack()).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stack()).poll_shutdown(context)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.stack()).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stack().is_write_vectored()
    }
}
