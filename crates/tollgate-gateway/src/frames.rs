//! Checks that an HTTP/2 client begins correctly, and limits the frames that carry nothing: pings, settings, resets,
//! priorities, empty parts of bodies, and window updates for data that was not sent. hyper bounds the memory that they
//! take, and this module bounds the work. A client beyond the limit loses its connection.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::Instant;

use crate::filtered::{Filter, Filtered};

/// Length of the preface, and of each frame's header.
const PREFACE_BYTES: usize = 24;
const HEAD_BYTES: usize = 9;
/// Maximum frames without content per second; maximum resets alone; and maximum pings, with which clients measure
/// bandwidth while a body moves.
const IDLE_FRAMES_MAX: u32 = 1_000;
const RESETS_MAX: u32 = 200;
const PINGS_MAX: u32 = 10_000;
/// Window updates that each part of an answer, or each request, allows: one for the stream and one for the connection.
const UPDATES_EACH: u64 = 2;
/// Maximum CONTINUATION frames of one header block.
const CONTINUATIONS_MAX: u32 = 16;
const WINDOW: Duration = Duration::from_secs(1);

/// A limit per second. The clock is read only when the count reaches the limit.
#[derive(Debug)]
struct FrameRateLimit {
    count: u32,
    most: u32,
    since: Instant,
}

impl FrameRateLimit {
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

/// Finds frame headers in a byte stream that may be split anywhere.
#[derive(Debug)]
struct Heads {
    /// Bytes of the preface, or of a frame's payload, that are still to come.
    skipped: usize,
    head: [u8; HEAD_BYTES],
    filled: usize,
}

impl Heads {
    const fn after(skipped: usize) -> Self {
        Self { skipped, head: [0; HEAD_BYTES], filled: 0 }
    }

    /// The next frame header, and the length of the payload; `None` when all bytes are consumed.
    fn next(&mut self, bytes: &mut &[u8]) -> Option<([u8; HEAD_BYTES], usize)> {
        let skipped = self.skipped.min(bytes.len());
        self.skipped -= skipped;
        let taken = (HEAD_BYTES - self.filled).min(bytes.len() - skipped);
        let (passed, rest) = bytes.split_at(skipped + taken);
        self.head[self.filled..self.filled + taken].copy_from_slice(&passed[skipped..]);
        self.filled += taken;
        *bytes = rest;
        if self.filled < HEAD_BYTES {
            return None;
        }
        let [high, middle, low, ..] = self.head;
        self.filled = 0;
        self.skipped = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
        Some((self.head, self.skipped))
    }
}

/// Counts the frames of a connection.
#[derive(Debug)]
struct FrameCounter {
    came: Heads,
    sent: Heads,
    /// Whether the first frame has come.
    is_begun: bool,
    continued: u32,
    idle: FrameRateLimit,
    resets: FrameRateLimit,
    pings: FrameRateLimit,
    updates: FrameRateLimit,
    /// Window updates that the data sent and the requests received allow.
    earned: u64,
}

impl FrameCounter {
    fn new(now: Instant) -> Self {
        Self {
            came: Heads::after(PREFACE_BYTES),
            sent: Heads::after(0),
            is_begun: false,
            continued: 0,
            idle: FrameRateLimit::new(IDLE_FRAMES_MAX, now),
            resets: FrameRateLimit::new(RESETS_MAX, now),
            pings: FrameRateLimit::new(PINGS_MAX, now),
            updates: FrameRateLimit::new(IDLE_FRAMES_MAX, now),
            earned: 0,
        }
    }

    /// Whether the next bytes stay within the limits.
    fn is_kept(&mut self, mut bytes: &[u8]) -> bool {
        while let Some((head, length)) = self.came.next(&mut bytes) {
            if !self.is_frame_kept(head, length) {
                return false;
            }
        }
        true
    }

    fn is_frame_kept(&mut self, head: [u8; HEAD_BYTES], length: usize) -> bool {
        let [_, _, _, kind, flags, ..] = head;
        if !self.is_begun {
            // The preface ends with a SETTINGS frame that is not an acknowledgement (RFC 9113, 3.4).
            self.is_begun = true;
            return kind == 4 && flags & 1 == 0;
        }
        if kind == 9 {
            self.continued += 1;
            return self.continued <= CONTINUATIONS_MAX;
        }
        self.continued = 0;
        match kind {
            // DATA and HEADERS carry something.
            0 if length > 0 => true,
            1 => {
                self.earned = self.earned.saturating_add(UPDATES_EACH);
                true
            }
            3 => self.resets.is_kept() && self.idle.is_kept(),
            6 => self.pings.is_kept(),
            8 => self.is_update_kept(),
            _ => self.idle.is_kept(),
        }
    }

    fn is_update_kept(&mut self) -> bool {
        match self.earned.checked_sub(1) {
            Some(left) => {
                self.earned = left;
                true
            }
            None => self.updates.is_kept(),
        }
    }

    /// Records bytes that were sent. A client may answer each part of an answer with updates of two windows.
    fn wrote(&mut self, mut bytes: &[u8]) {
        while let Some(([_, _, _, kind, ..], _)) = self.sent.next(&mut bytes) {
            if kind == 0 {
                self.earned = self.earned.saturating_add(UPDATES_EACH);
            }
        }
    }
}

/// The filter that ends a stream when its client floods it.
#[derive(Debug)]
pub(crate) struct Paced(FrameCounter);

impl Paced {
    /// Wraps a stream, so that it ends when its client floods it.
    pub(crate) fn before<S>(stream: S) -> Filtered<S, Self> {
        Filtered { stream, filter: Self(FrameCounter::new(Instant::now())) }
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

    fn wrote(&mut self, bytes: &[u8]) {
        self.0.wrote(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, length: u8) -> Vec<u8> {
        [&[0, 0, length, kind, 0, 0, 0, 0, 0], vec![0; usize::from(length)].as_slice()].concat()
    }

    /// How many frames of a kind pass before the connection ends. The test pauses after each `every` frames.
    async fn passed(kind: u8, length: u8, every: usize) -> usize {
        let mut counter = FrameCounter::new(Instant::now());
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

    /// The first frame must be the client's settings.
    #[test]
    fn beginnings() {
        let begins = |frame: &[u8]| {
            FrameCounter::new(Instant::now()).is_kept(&[&[b'P'; PREFACE_BYTES], frame].concat())
        };
        assert!(begins(&frame(4, 6)));
        assert!(!begins(&frame(6, 8)) && !begins(&frame(1, 9)) && !begins(&[0, 0, 0, 4, 1, 0, 0, 0, 0]));
    }

    /// Frames that carry nothing are limited; frames that carry something are not limited here.
    #[tokio::test(start_paused = true)]
    async fn floods_end() {
        assert_eq!(passed(3, 4, usize::MAX).await, 200);
        assert_eq!(passed(4, 0, usize::MAX).await, 1_000);
        assert_eq!(passed(2, 5, usize::MAX).await, 1_000);
        assert_eq!(passed(0, 0, usize::MAX).await, 1_000);
        assert_eq!(passed(6, 8, usize::MAX).await, 10_000);
        assert_eq!(passed(9, 1, usize::MAX).await, 16);
        assert_eq!(passed(8, 4, usize::MAX).await, 1_000);
        for (kind, length) in [(0, 9), (1, 9)] {
            assert_eq!(passed(kind, length, usize::MAX).await, 50_000);
        }
        assert_eq!(passed(3, 4, 150).await, 50_000, "a client that takes its time");
    }

    /// A client may update two windows for each part of an answer and for each request, at any rate, and no more than
    /// that.
    #[tokio::test(start_paused = true)]
    async fn updates_follow_from_answers() {
        let mut counter = FrameCounter::new(Instant::now());
        assert!(counter.is_kept(&[b'P'; PREFACE_BYTES]) && counter.is_kept(&frame(4, 0)));
        counter.wrote(&frame(4, 0));
        for sent in 0..100_000 {
            let part = frame(0, 5);
            let (first, second) = part.split_at(sent % (part.len() + 1));
            counter.wrote(first);
            counter.wrote(second);
            assert!(counter.is_kept(&frame(8, 4)) && counter.is_kept(&frame(8, 4)), "after {sent}");
        }
        for asked in 0..100_000 {
            assert!(counter.is_kept(&frame(1, 5)), "{asked}");
            assert!(counter.is_kept(&frame(8, 4)) && counter.is_kept(&frame(8, 4)), "after {asked}");
        }
        let more = (0..50_000).take_while(|_| counter.is_kept(&frame(8, 4))).count();
        assert_eq!(more, 1_000);
    }
}
