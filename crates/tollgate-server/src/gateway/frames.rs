//! Whether a client of HTTP/2 begins as it should, and how many frames it may send that carry nothing: pings, settings, resets, priorities
//! and empty parts of bodies. hyper bounds the memory that they take; here is the bound on the work. A client beyond it loses its connection.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::Instant;

use super::filtered::{Filter, Filtered};

/// Bytes before the first frame, and of each frame's head.
const PREFACE_BYTES: usize = 24;
const HEAD_BYTES: usize = 9;
/// Most such frames in a second; resets alone; and pings, with which clients measure while a body moves.
const IDLE_FRAMES_MAX: u32 = 1_000;
const RESETS_MAX: u32 = 200;
const PINGS_MAX: u32 = 10_000;
/// Most frames that continue one head.
const CONTINUATIONS_MAX: u32 = 16;
const WINDOW: Duration = Duration::from_secs(1);

/// How often something may happen in a second. The clock is read only when there was enough of it.
#[derive(Debug)]
struct Pace {
    count: u32,
    most: u32,
    since: Instant,
}

impl Pace {
    const fn new(most: u32, now: Instant) -> Self {
        Self { count: 0, most, since: now }
    }

    fn is_kept(&mut self) -> bool {
        self.count += 1;
        if self.count <= self.most {
            return true;
        }
        let now = Instant::now();
        let is_kept = now.duration_since(self.since) > WINDOW;
        (self.count, self.since) = (0, now);
        is_kept
    }
}

/// Follows the frames of a connection.
#[derive(Debug)]
struct Counter {
    /// Bytes of the preface, or of a frame's content, that are to come.
    skipped: usize,
    head: [u8; HEAD_BYTES],
    filled: usize,
    /// Whether the first frame was there.
    is_begun: bool,
    continued: u32,
    idle: Pace,
    resets: Pace,
    pings: Pace,
}

impl Counter {
    fn new(now: Instant) -> Self {
        Self {
            skipped: PREFACE_BYTES,
            head: [0; HEAD_BYTES],
            filled: 0,
            is_begun: false,
            continued: 0,
            idle: Pace::new(IDLE_FRAMES_MAX, now),
            resets: Pace::new(RESETS_MAX, now),
            pings: Pace::new(PINGS_MAX, now),
        }
    }

    /// Whether the next bytes keep the pace.
    fn is_kept(&mut self, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            if self.skipped > 0 {
                let taken = self.skipped.min(bytes.len());
                self.skipped -= taken;
                bytes = &bytes[taken..];
                continue;
            }
            let taken = (HEAD_BYTES - self.filled).min(bytes.len());
            self.head[self.filled..self.filled + taken].copy_from_slice(&bytes[..taken]);
            self.filled += taken;
            bytes = &bytes[taken..];
            if self.filled == HEAD_BYTES {
                self.filled = 0;
                if !self.is_frame_kept() {
                    return false;
                }
            }
        }
        true
    }

    fn is_frame_kept(&mut self) -> bool {
        let [high, middle, low, kind, flags, ..] = self.head;
        self.skipped = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
        if !self.is_begun {
            // Settings, and not the word that somebody's were heard, are a part of the preface (RFC 9113, 3.4).
            self.is_begun = true;
            return kind == 4 && flags & 1 == 0;
        }
        if kind == 9 {
            self.continued += 1;
            return self.continued <= CONTINUATIONS_MAX;
        }
        self.continued = 0;
        match kind {
            // DATA and HEADERS carry something, and WINDOW_UPDATE follows from what does.
            0 if self.skipped > 0 => true,
            1 | 8 => true,
            3 => self.resets.is_kept() && self.idle.is_kept(),
            6 => self.pings.is_kept(),
            _ => self.idle.is_kept(),
        }
    }
}

/// What ends a stream whose client floods it.
#[derive(Debug)]
pub(super) struct Paced(Counter);

impl Paced {
    /// A stream that ends when its client floods it.
    pub(super) fn before<S>(stream: S) -> Filtered<S, Self> {
        Filtered { stream, filter: Self(Counter::new(Instant::now())) }
    }
}

impl<S: AsyncRead + Unpin> Filter<S> for Paced {
    fn poll_read(
        &mut self,
        stream: &mut S,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        let read = Pin::new(stream).poll_read(context, into);
        if read.is_ready() && !self.0.is_kept(&into.filled()[before..]) {
            return Poll::Ready(Err(io::Error::other(
                "the client does not begin as it should, or sends too many frames that carry nothing",
            )));
        }
        read
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, length: u8) -> Vec<u8> {
        [&[0, 0, length, kind, 0, 0, 0, 0, 0], vec![0; usize::from(length)].as_slice()].concat()
    }

    /// How many frames of a kind pass before the connection ends; they come with a rest after each `every`.
    async fn passed(kind: u8, length: u8, every: usize) -> usize {
        let mut counter = Counter::new(Instant::now());
        assert!(counter.is_kept(&[b'P'; PREFACE_BYTES]) && counter.is_kept(&frame(4, 0)));
        for sent in 0..50_000 {
            if sent % every == every - 1 {
                tokio::time::advance(WINDOW + Duration::from_millis(1)).await;
            }
            let frame = frame(kind, length);
            let (first, second) = frame.split_at(sent % (frame.len() + 1)); // Wherever the bytes are cut.
            if !counter.is_kept(first) || !counter.is_kept(second) {
                return sent;
            }
        }
        50_000
    }

    /// The first frame is the client's settings.
    #[test]
    fn beginnings() {
        let begins =
            |frame: &[u8]| Counter::new(Instant::now()).is_kept(&[&[b'P'; PREFACE_BYTES], frame].concat());
        assert!(begins(&frame(4, 6)));
        assert!(!begins(&frame(6, 8)) && !begins(&frame(1, 9)) && !begins(&[0, 0, 0, 4, 1, 0, 0, 0, 0]));
    }

    /// Frames that carry nothing have a pace; those that carry something have none here.
    #[tokio::test(start_paused = true)]
    async fn floods_end() {
        assert_eq!(passed(3, 4, usize::MAX).await, 200);
        assert_eq!(passed(4, 0, usize::MAX).await, 1_000);
        assert_eq!(passed(2, 5, usize::MAX).await, 1_000);
        assert_eq!(passed(0, 0, usize::MAX).await, 1_000);
        assert_eq!(passed(6, 8, usize::MAX).await, 10_000);
        assert_eq!(passed(9, 1, usize::MAX).await, 16);
        for (kind, length) in [(0, 9), (1, 9), (8, 4)] {
            assert_eq!(passed(kind, length, usize::MAX).await, 50_000);
        }
        assert_eq!(passed(3, 4, 150).await, 50_000, "a client that takes its time");
    }
}
