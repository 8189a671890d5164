//! Timeouts of a connection for its client: for the first byte of a request, for the rest of its head, and for space to
//! write. hyper has one timeout for the first two. They differ here, because a client that keeps a connection open is
//! not a slow one.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

use super::connection_table::ConnectionActivity;
use super::pace::{Allowance, Pace};

/// How long a request's head may take to arrive, and also the first byte of a connection.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a connection may be idle between requests.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a client may not read.
pub const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// The minimum rate at which a client must read: 500 bytes a second, on average over a minute. A client's system
/// announces space only when a good part of its buffer is read, so a steady reader may seem to read nothing for half a
/// minute.
const READ_PACE: Pace = Pace { bytes: 30_000, over: Duration::from_secs(60), first: WRITE_TIMEOUT };

/// The state of a connection, shared by the stream and the code that answers requests.
#[derive(Debug, Default)]
pub struct Phase {
    /// Odd while a request is being answered. Relaxed suffices everywhere: only the task of the connection reads and
    /// writes it.
    turns: AtomicU32,
    /// Whether any byte was ever read.
    touched: AtomicBool,
    /// Whether the connection carries another protocol, which has no idle timeout here.
    left: AtomicBool,
    /// The entry in the connection limit that records whether the connection is used, if there is one.
    activity: Option<Arc<ConnectionActivity>>,
}

impl Phase {
    /// The state of a connection with an entry in the connection limit.
    pub fn at(activity: Arc<ConnectionActivity>) -> Self {
        Self { activity: Some(activity), ..Self::default() }
    }

    /// A request's head is complete. Its answer is in progress until the guard is dropped.
    pub fn answering(self: &Arc<Self>) -> Answering {
        self.turns.fetch_add(1, Ordering::Relaxed);
        if let Some(activity) = &self.activity {
            activity.begin();
        }
        Answering(Arc::clone(self))
    }

    /// The number of the next turn, which has not begun; `None` while a request is being answered, or on a connection
    /// that no longer carries HTTP.
    pub fn rest(&self) -> Option<u32> {
        let turn = self.turns.load(Ordering::Relaxed);
        Some(turn).filter(|turn| turn % 2 == 0 && !self.left.load(Ordering::Relaxed))
    }

    /// The connection no longer carries HTTP.
    pub fn leave(&self) {
        if let Some(activity) = &self.activity {
            activity.begin(); // It is used until its end.
        }
        self.left.store(true, Ordering::Relaxed);
    }

    /// Whether the client has sent anything at all.
    pub fn is_touched(&self) -> bool {
        self.touched.load(Ordering::Relaxed)
    }
}

/// A guard that exists while a request is being answered.
#[derive(Debug)]
pub struct Answering(Arc<Phase>);

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.turns.fetch_add(1, Ordering::Relaxed);
        if let Some(activity) = &self.0.activity {
            activity.end();
        }
    }
}

/// The progress of a head, and what the timer is set for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HeadProgress {
    /// Nothing came yet on this connection; the timer was set when it was made.
    First,
    /// Nothing came yet in this turn, and the timer is still that of the last one.
    Absent,
    /// Nothing came yet, and the timer is set for the idle timeout.
    Resting,
    /// Some of it came, and the timer is not yet set for the rest.
    Begun,
    /// Some of it came, and the timer is set for the rest.
    Awaited,
}

/// A stream that ends with a timeout if its client does not move.
#[derive(Debug)]
pub struct TimedStream<S> {
    stream: S,
    phase: Arc<Phase>,
    /// Fires at `until` or earlier. It is reset only when it fired too early or would fire too late, so a busy
    /// connection hardly ever resets it.
    reading: Pin<Box<Sleep>>,
    until: Instant,
    /// The current turn of the stream, and the progress of its head.
    turn: u32,
    head: HeadProgress,
    /// Since when the client does not read, and how long the server still waits for it.
    writing: Option<(Instant, Pin<Box<Sleep>>)>,
    reader: Allowance,
}

impl<S> TimedStream<S> {
    /// Sets timeouts for a stream, by the state of its connection.
    #[must_use]
    pub fn new(stream: S, phase: Arc<Phase>) -> Self {
        let reading = Box::pin(sleep(HEAD_TIMEOUT));
        Self {
            stream,
            phase,
            until: reading.deadline(),
            reading,
            turn: 0,
            head: HeadProgress::First,
            writing: None,
            reader: Allowance::new(READ_PACE),
        }
    }

    /// The stream itself.
    pub const fn inner(&self) -> &S {
        &self.stream
    }

    /// Whether the connection waits for a head, rather than for a body, which has its own timeout. A new turn begins
    /// idle.
    fn awaits_head(&mut self) -> bool {
        let turn = self.phase.turns.load(Ordering::Relaxed);
        if turn % 2 == 1 || self.phase.left.load(Ordering::Relaxed) {
            return false;
        }
        if turn != self.turn {
            self.turn = turn;
            self.head = HeadProgress::Absent;
        }
        true
    }

    /// Bytes arrived.
    fn moved(&mut self) {
        self.phase.touched.store(true, Ordering::Relaxed);
        if self.awaits_head() && self.head != HeadProgress::Awaited {
            self.head = HeadProgress::Begun;
        }
    }

    /// No bytes came: checks the timeout. Only this function sets a timer, because a head that arrives at once needs
    /// none.
    fn poll_timeout(&mut self, context: &mut Context<'_>) -> Poll<io::Error> {
        if !self.awaits_head() {
            return Poll::Pending;
        }
        let (next, timeout) = match self.head {
            HeadProgress::Absent => (HeadProgress::Resting, IDLE_TIMEOUT),
            // From now on the head has a deadline, however slowly the rest of it drips.
            HeadProgress::Begun => (HeadProgress::Awaited, HEAD_TIMEOUT),
            waiting => (waiting, Duration::ZERO),
        };
        if next != self.head {
            self.head = next;
            self.until = Instant::now() + timeout;
            if self.until < self.reading.deadline() {
                self.reading.as_mut().reset(self.until);
            }
        }
        while self.reading.as_mut().poll(context).is_ready() {
            if self.reading.deadline() >= self.until {
                return Poll::Ready(too_slow());
            }
            self.reading.as_mut().reset(self.until);
        }
        Poll::Pending
    }

    /// Handles the result of a write. A client that reads nothing, or too slowly, times out after a while.
    fn written<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
        bytes: impl Fn(&T) -> usize,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() || self.phase.left.load(Ordering::Relaxed) {
            if let Some((since, _)) = self.writing.take() {
                self.reader.spend(since.elapsed());
            }
            if let Poll::Ready(Ok(taken)) = &written {
                self.reader.earn(bytes(taken));
            }
            return written;
        }
        let left = self.reader.left();
        let (_, timer) = self.writing.get_or_insert_with(|| (Instant::now(), Box::pin(sleep(left))));
        timer.as_mut().poll(context).map(|()| Err(too_slow()))
    }
}

fn too_slow() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the client was too slow")
}

impl<S: AsyncRead + Unpin> AsyncRead for TimedStream<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = into.filled().len();
        let read = Pin::new(&mut this.stream).poll_read(context, into);
        if read.is_pending() {
            return this.poll_timeout(context).map(Err);
        }
        if into.filled().len() > before {
            this.moved();
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TimedStream<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write(context, bytes);
        this.written(context, written, |taken| *taken)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flushed = Pin::new(&mut this.stream).poll_flush(context);
        this.written(context, flushed, |()| 0)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // TLS writes a closing message, which a client may also not read.
        let this = self.get_mut();
        let ended = Pin::new(&mut this.stream).poll_shutdown(context);
        this.written(context, ended, |()| 0)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write_vectored(context, bytes);
        this.written(context, written, |taken| *taken)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;

    fn pair() -> (DuplexStream, TimedStream<DuplexStream>, Arc<Phase>) {
        let (client, stream) = duplex(16);
        let phase = Arc::new(Phase::default());
        (client, TimedStream::new(stream, Arc::clone(&phase)), phase)
    }

    /// Seconds of virtual time until a read times out.
    async fn timeout(patient: &mut TimedStream<DuplexStream>) -> u64 {
        let start = Instant::now();
        assert_eq!(patient.read_u8().await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        start.elapsed().as_secs()
    }

    /// A client that drips its head gets no more time than a silent one.
    #[tokio::test(start_paused = true)]
    async fn a_head_that_drips_is_given_up() {
        let (mut client, mut patient, phase) = pair();
        assert!(!phase.is_touched());
        client.write_all(b"P").await.unwrap();
        patient.read_u8().await.unwrap();
        // hyper reads on as soon as it has a byte.
        let more = tokio::time::timeout(Duration::from_secs(7), patient.read_u8()).await;
        assert!(more.is_err());
        client.write_all(b"O").await.unwrap();
        patient.read_u8().await.unwrap();
        assert_eq!(timeout(&mut patient).await, 3);
        assert!(phase.is_touched());
    }

    /// Between requests a connection may be idle for longer; once the next head has begun, the timeout is short again.
    #[tokio::test(start_paused = true)]
    async fn an_idle_connection_is_not_a_slow_one() {
        let (mut client, mut patient, phase) = pair();
        for _ in 0..2 {
            client.write_all(b"x").await.unwrap();
            patient.read_u8().await.unwrap();
            drop(phase.answering());
        }
        assert_eq!(timeout(&mut patient).await, 60);

        let (mut client, mut patient, phase) = pair();
        drop(phase.answering());
        client.write_all(b"x").await.unwrap();
        patient.read_u8().await.unwrap();
        assert_eq!(timeout(&mut patient).await, 10);
    }

    /// While a request is answered the stream does not time out, because the body has its own timeout.
    #[tokio::test(start_paused = true)]
    async fn a_body_is_not_a_head() {
        let (_client, mut patient, phase) = pair();
        let _answering = phase.answering();
        let read = tokio::time::timeout(Duration::from_secs(3_600), patient.read_u8()).await;
        assert!(read.is_err());
    }

    /// A client that does not read times out; one that reads slowly does not.
    #[tokio::test(start_paused = true)]
    async fn a_client_must_read() {
        let (mut client, mut patient, _) = pair();
        for _ in 0..3 {
            patient.write_all(&[0; 16]).await.unwrap();
            tokio::time::advance(Duration::from_secs(29)).await;
            client.read_exact(&mut [0; 16]).await.unwrap();
        }
        let start = Instant::now();
        let error = patient.write_all(&[0; 17]).await.unwrap_err();
        assert_eq!((error.kind(), start.elapsed().as_secs()), (io::ErrorKind::TimedOut, 30));
    }

    /// A client that read a few bytes now and then could once hold its answer, and an upstream's slot, for any time.
    #[tokio::test(start_paused = true)]
    async fn a_client_must_read_at_a_pace() {
        let (mut client, mut patient, _) = pair();
        let start = Instant::now();
        let reading = tokio::spawn(async move {
            let mut read = 0;
            while client.read_exact(&mut [0; 16]).await.is_ok() {
                read += 16;
                tokio::time::sleep(Duration::from_secs(10)).await;
            }
            read
        });
        let error = patient.write_all(&[0; 4_096]).await.unwrap_err();
        assert_eq!((error.kind(), start.elapsed().as_secs()), (io::ErrorKind::TimedOut, 30));
        drop(patient);
        assert!((48..=96).contains(&reading.await.unwrap()));
        // A client at the minimum rate gets the whole answer, however long that takes.
        let (mut client, mut patient, _) = pair();
        let reading = tokio::spawn(async move {
            let mut read = 0;
            while client.read_exact(&mut [0; 16]).await.is_ok() {
                read += 16;
                tokio::time::sleep(Duration::from_millis(30)).await;
            }
            read
        });
        let start = Instant::now();
        patient.write_all(&[0; 64 << 10]).await.unwrap();
        assert!(start.elapsed() > Duration::from_secs(100));
        drop(patient);
        assert_eq!(reading.await.unwrap(), 64 << 10);
    }

    /// A stream on which the closing message is never read.
    struct Deaf;

    impl AsyncWrite for Deaf {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Pending
        }
    }

    /// The close of a connection needs no consent: a client that does not read the closing message times out as well.
    #[tokio::test(start_paused = true)]
    async fn a_client_must_take_the_end() {
        let mut patient = TimedStream::new(Deaf, Arc::new(Phase::default()));
        let start = Instant::now();
        let error = patient.shutdown().await.unwrap_err();
        assert_eq!((error.kind(), start.elapsed().as_secs()), (io::ErrorKind::TimedOut, 30));
    }
}
