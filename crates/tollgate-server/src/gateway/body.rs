//! Bodies on their way: never kept, only handed on, so that whoever is slow slows the other side. What is added is patience: for a client
//! that does not send, until the upstream has answered; and for an upstream that does not.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::{Body as _, Frame, Incoming, SizeHint};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, Sleep, sleep};

/// The error of any body here.
pub(crate) type BodyError = Box<dyn std::error::Error + Send + Sync>;
/// The body of any answer.
pub(crate) type Body = UnsyncBoxBody<Bytes, BodyError>;

/// How long a client may take for its body in all, beside the time that its bytes earn.
const UPLOAD_GRACE: Duration = Duration::from_secs(20);
/// Bytes that earn a second. Whoever is slower holds an upstream's connection, and gives nothing for it.
const UPLOAD_BYTES_PER_SECOND: u64 = 256;

/// What became of a request's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    TooSlow,
    CutOff,
}

/// The body of a request, before an upstream has begun to read it. It can be lent to one after the other as long as none has.
#[derive(Clone)]
pub(super) struct Upload(Arc<Shared>);

struct Shared {
    /// Locked for the moment of taking it.
    body: Mutex<Option<Incoming>>,
    size: SizeHint,
    is_empty: bool,
    fault: Mutex<Option<Fault>>,
    begun: Instant,
    /// When the last of it went on, in microseconds since then. Relaxed, as the flags: all only tell somebody to wait on.
    moved: AtomicU64,
    /// Whether an upstream would read on, and the client sends nothing.
    is_awaited: AtomicBool,
    is_answered: AtomicBool,
}

impl Upload {
    pub(super) fn new(body: Incoming) -> Self {
        Self::of(body.size_hint(), body.is_end_stream(), Some(body))
    }

    /// The body of a request that has none.
    pub(super) fn empty() -> Self {
        Self::of(SizeHint::with_exact(0), true, None)
    }

    fn of(size: SizeHint, is_empty: bool, body: Option<Incoming>) -> Self {
        Self(Arc::new(Shared {
            body: Mutex::new(body),
            size,
            is_empty,
            fault: Mutex::new(None),
            begun: Instant::now(),
            moved: AtomicU64::new(0),
            is_awaited: AtomicBool::new(false),
            is_answered: AtomicBool::new(false),
        }))
    }

    /// The body for one attempt.
    pub(super) fn lend(&self) -> Lent {
        Lent { shared: Arc::clone(&self.0), taken: None, bytes: 0, waited: Duration::ZERO, waiting: None }
    }

    /// Whether nobody has read any of it, so that it can be sent to another.
    pub(super) fn is_whole(&self) -> bool {
        self.0.is_empty || self.0.body.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty
    }

    /// Whether its length was told.
    pub(super) fn is_measured(&self) -> bool {
        self.0.size.exact().is_some()
    }

    pub(super) fn fault(&self) -> Option<Fault> {
        *self.0.fault.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What comes of sending it, unless nothing does for so long after its last byte. A client that is awaited has its own time.
    pub(super) async fn in_time<F: Future>(&self, patience: Duration, sending: F) -> Option<F::Output> {
        let (mut sending, begun) = (std::pin::pin!(sending), Instant::now());
        let mut due = begun + patience;
        loop {
            if let Ok(sent) = tokio::time::timeout_at(due, sending.as_mut()).await {
                return Some(sent);
            }
            let now = Instant::now();
            let is_awaited = self.0.is_awaited.load(Ordering::Relaxed);
            let since = if is_awaited { now } else { self.0.moved_at().max(begun) };
            due = since + patience;
            if due <= now {
                return None;
            }
        }
    }

    /// From now on the answer sets the pace: a stream in both directions may rest.
    pub(super) fn answered(&self) {
        self.0.is_answered.store(true, Ordering::Relaxed);
    }
}

impl Shared {
    fn moves(&self) {
        let since = u64::try_from(self.begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.moved.store(since, Ordering::Relaxed);
    }

    fn moved_at(&self) -> Instant {
        self.begun + Duration::from_micros(self.moved.load(Ordering::Relaxed))
    }
}

/// A request's body, as an upstream's connection reads it.
pub(super) struct Lent {
    shared: Arc<Shared>,
    taken: Option<Incoming>,
    bytes: u64,
    /// How long the client has kept us waiting, and since when it does now.
    waited: Duration,
    waiting: Option<(Instant, Pin<Box<Sleep>>)>,
}

impl Lent {
    fn fail(&self, fault: Fault) -> BodyError {
        *self.shared.fault.lock().unwrap_or_else(PoisonError::into_inner) = Some(fault);
        "the client's body did not arrive".into()
    }

    /// What a client may still make us wait.
    fn patience(&self) -> Duration {
        let earned = Duration::from_secs(self.bytes / UPLOAD_BYTES_PER_SECOND);
        (UPLOAD_GRACE + earned).saturating_sub(self.waited)
    }
}

impl hyper::body::Body for Lent {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        if this.taken.is_none() {
            this.taken = this.shared.body.lock().unwrap_or_else(PoisonError::into_inner).take();
        }
        let Some(body) = &mut this.taken else { return Poll::Ready(None) };
        let polled = loop {
            match Pin::new(&mut *body).poll_frame(context) {
                // Trailers of a request are not sent on: a server might take them for fields that the gateway has looked at.
                Poll::Ready(Some(Ok(frame))) if !frame.is_data() => {}
                polled => break polled,
            }
        };
        this.shared.is_awaited.store(polled.is_pending(), Ordering::Relaxed);
        match polled {
            Poll::Ready(Some(Ok(frame))) => {
                this.bytes += frame.data_ref().map_or(0, |bytes| u64::try_from(bytes.len()).unwrap_or(0));
                if let Some((since, _)) = this.waiting.take() {
                    this.waited += since.elapsed();
                }
                this.shared.moves();
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(_))) => Poll::Ready(Some(Err(this.fail(Fault::CutOff)))),
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending => {
                if this.waiting.is_none() {
                    this.waiting = Some((Instant::now(), Box::pin(sleep(this.patience()))));
                }
                let is_over =
                    this.waiting.as_mut().is_some_and(|(_, sleep)| sleep.as_mut().poll(context).is_ready());
                if is_over && !this.shared.is_answered.load(Ordering::Relaxed) {
                    return Poll::Ready(Some(Err(this.fail(Fault::TooSlow))));
                }
                Poll::Pending
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.taken {
            Some(body) => body.is_end_stream(),
            None => self.shared.is_empty,
        }
    }

    fn size_hint(&self) -> SizeHint {
        self.taken.as_ref().map_or(self.shared.size, Incoming::size_hint)
    }
}

/// The body of an upstream's answer. What it holds is given back when it ends or is given up.
pub(super) struct Download {
    pub(super) body: Incoming,
    /// How long the upstream may send nothing while the client would read on.
    pub(super) idle: Duration,
    pub(super) waiting: Option<Pin<Box<Sleep>>>,
    /// The place at the upstream.
    pub(super) _place: OwnedSemaphorePermit,
}

impl hyper::body::Body for Download {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.body).poll_frame(context);
        if polled.is_ready() {
            this.waiting = None;
            return polled.map_err(Into::into);
        }
        let idle = this.idle;
        let waiting = this.waiting.get_or_insert_with(|| Box::pin(sleep(idle)));
        waiting.as_mut().poll(context).map(|()| Some(Err("the upstream stopped sending".into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A body that holds something until it is over.
pub(super) struct Holding<H> {
    pub(super) body: Body,
    pub(super) held: H,
}

impl<H: Unpin + Watched> hyper::body::Body for Holding<H> {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.body).poll_frame(context);
        this.held.polled(polled.is_ready());
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Who wants to know when a body is asked for more.
pub(super) trait Watched {
    /// It was asked, and had something to give or not.
    fn polled(&mut self, is_ready: bool);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The time for an answer is counted from the last byte of a request, to the moment, and not at all while the client is awaited.
    #[tokio::test(start_paused = true)]
    async fn an_answer_is_late_to_the_moment() {
        let second = Duration::from_secs(1);
        let late = async |upload: &Upload| {
            let begun = Instant::now();
            assert_eq!(upload.in_time(2 * second, std::future::pending::<()>()).await, None);
            begun.elapsed().as_secs()
        };
        assert_eq!(late(&Upload::empty()).await, 2);
        // The last byte goes on after a second.
        let upload = Upload::empty();
        let moving = upload.clone();
        tokio::spawn(async move {
            sleep(second).await;
            moving.0.moves();
        });
        assert_eq!(late(&upload).await, 3);
        // The client sends nothing for ten seconds, and then the last byte.
        let upload = Upload::empty();
        let moving = upload.clone();
        moving.0.is_awaited.store(true, Ordering::Relaxed);
        tokio::spawn(async move {
            sleep(10 * second).await;
            moving.0.moves();
            moving.0.is_awaited.store(false, Ordering::Relaxed);
        });
        assert_eq!(late(&upload).await, 12);
        // An answer in time.
        assert_eq!(Upload::empty().in_time(2 * second, sleep(second)).await, Some(()));
    }
}
