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
    /// Frames that went on. Relaxed, as the flag: both only tell somebody to wait on.
    moved: AtomicU64,
    is_answered: AtomicBool,
}

impl Upload {
    pub(super) fn new(body: Incoming) -> Self {
        Self(Arc::new(Shared {
            size: body.size_hint(),
            is_empty: body.is_end_stream(),
            body: Mutex::new(Some(body)),
            fault: Mutex::new(None),
            moved: AtomicU64::new(0),
            is_answered: AtomicBool::new(false),
        }))
    }

    /// The body of a request that has none.
    pub(super) fn empty() -> Self {
        Self(Arc::new(Shared {
            body: Mutex::new(None),
            size: SizeHint::with_exact(0),
            is_empty: true,
            fault: Mutex::new(None),
            moved: AtomicU64::new(0),
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

    pub(super) fn moved(&self) -> u64 {
        self.0.moved.load(Ordering::Relaxed)
    }

    /// From now on the answer sets the pace: a stream in both directions may rest.
    pub(super) fn answered(&self) {
        self.0.is_answered.store(true, Ordering::Relaxed);
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
        match polled {
            Poll::Ready(Some(Ok(frame))) => {
                this.bytes += frame.data_ref().map_or(0, |bytes| u64::try_from(bytes.len()).unwrap_or(0));
                if let Some((since, _)) = this.waiting.take() {
                    this.waited += since.elapsed();
                }
                this.shared.moved.fetch_add(1, Ordering::Relaxed);
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
