//! A client's HTTP/1 connection: its requests, one after the other, and the idle time between them. One task owns it,
//! reads each head once, and drives the answer. An idle connection has neither a request nor buffers. It is a stream
//! and a timer, so that thousands of them cost next to nothing.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::Duration;

use http::Response;
use tokio::io::AsyncWriteExt;
use tokio::time::{Instant, sleep, timeout};

use crate::arrival::Peer;
use crate::body::Limited;
use crate::entry::Prefixed;
use crate::gateway::Gateway;
use crate::http1::framing::{Flaw, RequestHead};
use crate::http1::pipeline::SharedConnection;
use crate::listen::{Phase, TimedStream};
use crate::own::{self, ClientProtocol};
use crate::problem::{Kind, Problem};
use crate::request_body::RequestBody;
use crate::shutdown::{Stop, stopped};
use crate::tunnel::{Tunnel, TunnelHandoff};
use written::{AnswerWriter, Cut, ResponseOptions};

mod written;
mod date;

/// How long a connection waits, after the server was asked to stop, for a request that its client has sent already.
pub(crate) const LINGER: Duration = Duration::from_secs(1);
/// Interval of the check for idleness: a connection that did nothing from one check to the next is idle.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long a client may go on sending after its last answer, and how long it may pause meanwhile. The values are those
/// of nginx. Its connection counts as idle, and may be closed in favour of others.
const DROP_TIMEOUT: Duration = Duration::from_secs(30);
const DROP_IDLE: Duration = Duration::from_secs(5);
/// How long an answered request may keep its connection from the next one.
const FREE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the gateway goes on answering a client that has closed its sending side: this long for the head, and again
/// this long for each further part. docs/gateway-requests.md promises this time.
const HALF_CLOSED_GRACE: Duration = Duration::from_secs(2);

/// A connection.
struct ClientConnection {
    gateway: Arc<Gateway>,
    peer: Peer,
    stop: Stop,
    phase: Arc<Phase>,
    connection: SharedConnection,
}

/// The step after a request.
enum After {
    /// Another request.
    Next,
    /// Nothing for now: the connection is idle.
    Rest,
    /// Nothing: the answer said `close`, the client has closed its side, or the client is gone.
    Closed,
    Ended,
    Gone,
    /// Another protocol.
    Tunnel(Box<Tunnel>),
}

/// Serves a connection until either side ends it.
pub(crate) async fn serve(stream: Prefixed, gateway: Arc<Gateway>, peer: Peer, mut stop: Stop) {
    let (stream, begun) = stream.into_parts();
    let phase = Arc::new(Phase::at(stream.activity()));
    let connection = SharedConnection::new(TimedStream::new(stream, Arc::clone(&phase)), &begun);
    let client = ClientConnection { gateway, peer, stop: stop.clone(), phase, connection };
    let (mut stopping, mut has_stopped) = (pin!(stopped(&mut stop)), false);
    let mut first = client.next(stopping.as_mut(), &mut has_stopped).await;
    while let Some(head) = first.take() {
        // Boxed, so that its memory is freed while the connection is idle.
        match Box::pin(client.turns(head, stopping.as_mut(), &mut has_stopped)).await {
            After::Next | After::Rest => first = client.next(stopping.as_mut(), &mut has_stopped).await,
            After::Closed => return Box::pin(client.close()).await,
            After::Ended => break,
            After::Gone => return,
            After::Tunnel(tunnel) => return Box::pin(tunnel.carry_from(client.connection)).await,
        }
    }
    let mut connection = client.connection;
    let _ = connection.shutdown().await; // There is no answer left to wait for.
}

impl ClientConnection {
    /// Answers requests, beginning with this one, until the connection is idle or ends.
    async fn turns(
        &self,
        mut head: Result<usize, Flaw>,
        mut stopping: Pin<&mut impl Future<Output = ()>>,
        has_stopped: &mut bool,
    ) -> After {
        let mut rests = pin!(self.rests());
        loop {
            let after = self.turn(head).await;
            if !matches!(after, After::Next) {
                return after;
            }
            let next = tokio::select! {
                biased;
                next = self.next(stopping.as_mut(), has_stopped) => next,
                () = rests.as_mut() => return After::Rest,
            };
            match next {
                Some(next) => head = next,
                None => return After::Ended,
            }
        }
    }

    /// Waits until no request came and none was in flight between two checks.
    async fn rests(&self) {
        let mut look = pin!(sleep(LOOK_EVERY));
        let mut seen = None;
        loop {
            look.as_mut().await;
            let turn = self.phase.rest().filter(|_| self.connection.lock().is_empty());
            if turn.is_some() && turn == seen {
                return;
            }
            seen = turn;
            look.as_mut().reset(Instant::now() + LOOK_EVERY);
        }
    }

    /// Waits for the next head. Returns where it ends or what is wrong with it, and `None` when the connection ends
    /// first.
    async fn next(
        &self,
        mut stopping: Pin<&mut impl Future<Output = ()>>,
        has_stopped: &mut bool,
    ) -> Option<Result<usize, Flaw>> {
        let mut lingering = None;
        poll_fn(|context| {
            if let Poll::Ready(head) = self.connection.lock().poll_head(context) {
                return Poll::Ready(head.transpose());
            }
            if !*has_stopped {
                ready!(stopping.as_mut().poll(context));
                *has_stopped = true;
            }
            // A request that has begun is answered. A connection that was only opened ahead of need is not waited for.
            let lingering = lingering.get_or_insert_with(|| Box::pin(sleep(LINGER)));
            match lingering.as_mut().poll(context) {
                Poll::Ready(()) if self.connection.lock().is_empty() => Poll::Ready(None),
                _ => Poll::Pending,
            }
        })
        .await
    }

    /// Answers one request.
    async fn turn(&self, end: Result<usize, Flaw>) -> After {
        let answering = self.phase.answering();
        let head = end.and_then(|end| {
            let text = self.connection.lock().take_head(end);
            RequestHead::read(text)
        });
        let (response, asker) = match head {
            Ok(head) => {
                let asker = ResponseOptions::of(&head);
                let Some(response) = self.answered(head).await else { return After::Gone };
                (response, asker)
            }
            Err(flaw) => (own::answer(&flawed(flaw), ClientProtocol::Http), ResponseOptions::unknown()),
        };
        let after = self.written(response, asker).await;
        drop(answering);
        if let After::Next = after {
            let is_free = self.is_free().await;
            self.connection.lock().turn_ends();
            return if is_free { After::Next } else { After::Closed };
        }
        after
    }

    /// Whether another request can follow an answered one, once the rest of its body is read.
    async fn is_free(&self) -> bool {
        // Usually it can at once, and no timer is needed.
        let polled = poll_fn(|context| Poll::Ready(self.connection.lock().poll_free(context))).await;
        let Poll::Pending = polled else { return matches!(polled, Poll::Ready(true)) };
        let is_free = poll_fn(|context| self.connection.lock().poll_free(context));
        timeout(FREE_TIMEOUT, is_free).await.unwrap_or(false)
    }

    /// Computes the gateway's answer, unless the client goes away first.
    async fn answered(&self, head: RequestHead) -> Option<Response<Limited>> {
        let body = self.connection.coming(head.body);
        if head.is_waiting {
            self.connection.send_continue();
        }
        let body = body.map_or(RequestBody::Held(None), RequestBody::Client);
        let mut answer = pin!(self.gateway.answer(head.request.map(|()| body), self.peer));
        poll_fn(|context| match answer.as_mut().poll(context) {
            Poll::Ready(response) => Poll::Ready(Some(response)),
            Poll::Pending => self.connection.lock().poll_gone(HALF_CLOSED_GRACE, context).map(|()| None),
        })
        .await
    }

    /// Writes an answer, and returns what follows it.
    async fn written(&self, mut response: Response<Limited>, mut asker: ResponseOptions) -> After {
        let tunnel = TunnelHandoff::take(&mut response);
        let behind = {
            let mut connection = self.connection.lock();
            let behind = connection.answer_begins();
            asker.is_kept &= connection.skip_body() && !*self.stop.borrow() && !must_close(&response);
            behind
        };
        let mut answer = AnswerWriter::new(response, asker, behind, self.gateway.program.wall_now());
        let written = poll_fn(|context| {
            let before = answer.written;
            match answer.poll(&self.connection, context) {
                Poll::Ready(Ok(())) => Poll::Ready(true),
                Poll::Ready(Err(cut)) => {
                    if cut == Cut::Slow {
                        self.gateway.proxy.slow.reader();
                    }
                    Poll::Ready(false)
                }
                Poll::Pending => {
                    let mut connection = self.connection.lock();
                    if answer.written != before {
                        connection.is_reading(); // It may have ended its side, but it is there.
                    }
                    connection.poll_gone(HALF_CLOSED_GRACE, context).map(|()| false)
                }
            }
        });
        match (written.await, tunnel) {
            (false, _) => {
                if answer.ends_with_connection() {
                    self.connection.lock().reset(); // Else what came of it would look like all of it.
                }
                After::Gone
            }
            (true, Some(tunnel)) => {
                self.phase.leave();
                After::Tunnel(Box::new(tunnel))
            }
            (true, None) if answer.is_kept => After::Next,
            (true, None) => After::Closed,
        }
    }

    /// Closes the connection after its last answer.
    async fn close(mut self) {
        if self.connection.shutdown().await.is_err() || !self.connection.lock().has_unread() {
            return;
        }
        // Unread bytes would reset the connection before the client has read its answer.
        let dropped = async {
            while let Ok(true) =
                timeout(DROP_IDLE, poll_fn(|context| self.connection.lock().poll_drop(context))).await
            {
            }
        };
        let _ = timeout(DROP_TIMEOUT, dropped).await;
    }
}

/// Whether the rest of a request cannot be used: its head was malformed, or its body did not come.
fn must_close(response: &Response<Limited>) -> bool {
    matches!(response.status().as_u16(), 408 | 414 | 431)
        && response.extensions().get::<own::GatewayAnswer>().is_some()
}

/// The answer to a client whose head is malformed.
fn flawed(flaw: Flaw) -> Problem {
    match flaw {
        Flaw::TooLarge => Problem::new(Kind::FieldsTooLarge, flaw.text()),
        _ => Problem::invalid(flaw.text()),
    }
}
