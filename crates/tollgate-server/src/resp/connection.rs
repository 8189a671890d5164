//! One connection: reads the available bytes, has all commands answered, and sends the answers in one write. Everything
//! that a client can make the server store or wait for is bounded.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, sleep_until, timeout};
use tollgate::store::Store;

use super::Resp;
use super::session::{Flow, Session};
use crate::protocol::Protocol;
use crate::shutdown::{Stop, stopped};
use timeouts::{ClientTimeouts, ReceivedCommands, TimerEvent};

mod timeouts;

/// How long a client may refuse to read.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a connection waits after the stop signal for commands that its client has already sent, and after the last
/// answer for the client to close its side. If it closed sooner, arriving bytes would make the system discard answers
/// that are on their way.
const LINGER: Duration = Duration::from_secs(1);
/// How long a client that keeps sending is answered after the stop signal.
const DRAIN_MAX: Duration = Duration::from_secs(5);
/// The initial and the maximum number of bytes in one read. A client that fills a read gets a larger one.
const READ_BYTES: usize = 4 << 10;
const READ_BYTES_MAX: usize = 64 << 10;

/// Answers the commands of one connection until either side ends it.
pub(crate) async fn connection<S, T>(stream: T, resp: Arc<Resp<S>>, stop: Stop)
where
    S: Store,
    T: AsyncRead + AsyncWrite + Unpin,
{
    let _open = resp.service.meter.opened(Protocol::Resp);
    let mut connection = Connection::new(stream, resp.next_id());
    if let Err(error) = connection.run(&resp, stop).await {
        tracing::debug!(%error, "a connection ended early");
    }
}

/// Why a wait for bytes ended.
enum Received {
    Bytes,
    /// The client will send no more.
    End,
    /// The other future completed.
    Interrupted,
}

struct Connection<T> {
    stream: T,
    session: Session,
    input: BytesMut,
    output: BytesMut,
    read_bytes: usize,
}

impl<T: AsyncRead + AsyncWrite + Unpin> Connection<T> {
    fn new(stream: T, id: u64) -> Self {
        let (input, output) = (BytesMut::new(), BytesMut::new());
        Self { stream, session: Session::new(id), input, output, read_bytes: READ_BYTES }
    }

    async fn run<S: Store>(&mut self, resp: &Resp<S>, mut stop: Stop) -> io::Result<()> {
        let watch = stop.clone();
        let mut interrupt = pin!(stopped(&mut stop));
        let mut timeouts = ClientTimeouts::new();
        loop {
            match self.read(&mut timeouts, interrupt.as_mut()).await? {
                Received::Bytes if self.answer(resp, &mut timeouts).await? == Flow::Close => break,
                Received::Bytes => {}
                Received::End => return self.stream.shutdown().await,
                Received::Interrupted => return self.drain(resp, &mut timeouts).await,
            }
            // Otherwise a client that keeps sending would delay the stop for ever.
            if *watch.borrow() {
                return self.drain(resp, &mut timeouts).await;
            }
        }
        self.close().await
    }

    /// Answers the commands that the client sent before it could know that the server stops.
    async fn drain<S: Store>(&mut self, resp: &Resp<S>, timeouts: &mut ClientTimeouts) -> io::Result<()> {
        let end = Instant::now() + DRAIN_MAX;
        loop {
            let now = Instant::now();
            if now >= end {
                break;
            }
            let quiet = pin!(sleep_until(end.min(now + LINGER)));
            match self.read(timeouts, quiet).await? {
                Received::Bytes if self.answer(resp, timeouts).await? == Flow::Close => break,
                Received::Bytes => {}
                Received::End => return self.stream.shutdown().await,
                Received::Interrupted => break,
            }
        }
        self.close().await
    }

    /// Closes the sending side, and discards what arrives until the client closes its side too.
    async fn close(&mut self) -> io::Result<()> {
        self.stream.shutdown().await?;
        let rest = async {
            loop {
                self.input.clear();
                self.input.reserve(READ_BYTES);
                if self.stream.read_buf(&mut self.input).await? == 0 {
                    return Ok(());
                }
            }
        };
        timeout(LINGER, rest).await.unwrap_or(Ok(()))
    }

    /// Waits for more bytes, until `interrupt` completes.
    async fn read(
        &mut self,
        timeouts: &mut ClientTimeouts,
        mut interrupt: Pin<&mut impl Future<Output = ()>>,
    ) -> io::Result<Received> {
        loop {
            if self.input.capacity() - self.input.len() < self.read_bytes / 2 {
                self.input.reserve(self.read_bytes);
            }
            let room = self.input.capacity() - self.input.len();
            tokio::select! {
                biased; // What has come is answered, even when the server is to stop.
                read = self.stream.read_buf(&mut self.input) => {
                    let read = read?;
                    if read == room && self.read_bytes < READ_BYTES_MAX {
                        self.read_bytes *= 2;
                    }
                    return Ok(if read > 0 { Received::Bytes } else { Received::End });
                }
                () = interrupt.as_mut() => return Ok(Received::Interrupted),
                fired = timeouts.fired() => match fired {
                    TimerEvent::TimedOut => return Err(too_slow()),
                    TimerEvent::Idle => self.rest(),
                },
            }
        }
    }

    /// Frees memory that an idle client does not need.
    fn rest(&mut self) {
        self.output = BytesMut::new();
        if self.input.is_empty() {
            self.input = BytesMut::new();
            self.read_bytes = READ_BYTES;
        }
    }

    /// Answers all complete commands, with as few writes as possible.
    async fn answer<S: Store>(&mut self, resp: &Resp<S>, timeouts: &mut ClientTimeouts) -> io::Result<Flow> {
        let mut progress = false;
        loop {
            let now = resp.service.now();
            let (used, flow) = self.session.run(resp, &self.input, &mut self.output, now).await;
            self.input.advance(used);
            progress |= used > 0;
            if !self.output.is_empty() {
                self.send().await?;
            }
            if flow != Flow::Write {
                let arrival = match (self.input.is_empty(), progress) {
                    (true, _) => ReceivedCommands::Complete,
                    (false, true) => ReceivedCommands::NextBegun,
                    (false, false) => ReceivedCommands::Partial,
                };
                timeouts.moved(arrival);
                return Ok(flow);
            }
        }
    }

    /// Sends the output. Nearly always the socket takes all of it immediately, and then no timer is started.
    async fn send(&mut self) -> io::Result<()> {
        let first_write =
            poll_fn(|context| match Pin::new(&mut self.stream).poll_write(context, &self.output) {
                Poll::Ready(Ok(written)) if written == self.output.len() => {
                    let flushed = Pin::new(&mut self.stream).poll_flush(context);
                    Poll::Ready(Ok((written, flushed.is_ready())))
                }
                Poll::Ready(written) => Poll::Ready(written.map(|written| (written, false))),
                Poll::Pending => Poll::Ready(Ok((0, false))),
            });
        let (written, flushed) = first_write.await?;
        if !flushed {
            let rest = async {
                self.stream.write_all(self.output.get(written..).unwrap_or_default()).await?;
                self.stream.flush().await
            };
            timeout(WRITE_TIMEOUT, rest).await.map_err(|_| too_slow())??;
        }
        self.output.clear();
        Ok(())
    }
}

fn too_slow() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the client was too slow")
}
