//! The body of a request on its way to an upstream. Its beginning is read before the request takes a slot of the
//! upstream; the rest is passed on as it comes. While the gateway waits for the client, the client must keep the
//! minimum rate until the upstream has answered.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http::header::TRAILER;
use hyper::body::{Body, SizeHint};
use tokio::time::Instant;
use tollgate_tower::HeldPermits;

use crate::body_budget::BodyBudget;
use crate::cause::{BodyError, FramePoll};
use crate::listen::Pace;
use crate::request_body::RequestBody;
use crate::shares::{ClientShares, Full, ShareOwner};
use crate::trailers::Trailers;

mod source;

pub(crate) use source::Fault;
use source::{AnswerState, Source};

/// Maximum bytes of incomplete small bodies, of all requests together. Each client has a share of them: [`BodyBudget`].
const AHEAD_BYTES_MAX: usize = 64 << 20;
/// Maximum requests that wait for their body before they take a slot, and a client's share of them, in per cent.
const UNBEGUN_MAX: usize = 8_192;
const UNBEGUN_PER_CLIENT: u32 = 25;

/// Why a body did not begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyNotStarted {
    Fault(Fault),
    /// The maximum number of requests waits for their bodies already.
    Full(Full),
}

/// The bounds on bodies that are not being sent on yet, for all requests of a gateway.
pub(crate) struct Unsent {
    requests: Arc<ClientShares>,
    bytes: Arc<BodyBudget>,
}

impl Default for Unsent {
    fn default() -> Self {
        let share = ClientShares::part(UNBEGUN_MAX, UNBEGUN_PER_CLIENT);
        Self { requests: ClientShares::new(UNBEGUN_MAX, share), bytes: BodyBudget::of(AHEAD_BYTES_MAX) }
    }
}

/// The body of a request, before an upstream has begun to read it. It can be lent to one attempt after the other until
/// one reads it, and after that if it is small enough to be kept. Most requests have no body, and allocate nothing for
/// it.
#[derive(Clone)]
pub(crate) struct Upload(Option<Arc<UploadShared>>);

struct UploadShared {
    /// Locked to read the beginning of the body, and for the moment of taking it.
    source: Mutex<Option<Source>>,
    size: SizeHint,
    /// The filter for its trailers; `None` where none can come, or none are wanted.
    trailers: Option<Arc<Trailers>>,
    fault: Mutex<Option<Fault>>,
    begun: Instant,
    /// When the last part was passed on, in microseconds since `begun`. Relaxed, as the flags: all of them only extend
    /// a wait.
    moved: AtomicU64,
    /// Whether an upstream is ready to read on while the client sends nothing.
    is_awaited: AtomicBool,
    is_answered: AtomicBool,
}

impl Upload {
    pub(crate) fn new(body: RequestBody, trailers: Option<Arc<Trailers>>, pace: Pace) -> Self {
        if body.is_end_stream() {
            return Self::empty();
        }
        Self(Some(Arc::new(UploadShared {
            size: body.size_hint(),
            trailers,
            source: Mutex::new(Some(Source::new(body, pace))),
            fault: Mutex::new(None),
            begun: Instant::now(),
            moved: AtomicU64::new(0),
            is_awaited: AtomicBool::new(false),
            is_answered: AtomicBool::new(false),
        })))
    }

    /// The body of a request without one.
    pub(crate) const fn empty() -> Self {
        Self(None)
    }

    /// Waits until there is something to send: all of a small body, or the first bytes of a large one.
    ///
    /// # Errors
    /// When the body does not come, or too many requests wait for theirs.
    pub(crate) async fn begin(&self, unsent: &Unsent, client: ShareOwner) -> Result<(), BodyNotStarted> {
        let Some(shared) = &self.0 else { return Ok(()) };
        // Usually the body comes with the head, and takes nothing from the bounds.
        let polled = std::future::poll_fn(|context| Poll::Ready(shared.poll_begin(context))).await;
        if let Poll::Ready(begun) = polled {
            return begun.map_err(BodyNotStarted::Fault);
        }
        let _awaited = unsent.requests.try_take(client).map_err(BodyNotStarted::Full)?;
        if let Some(source) = shared.source().as_mut() {
            source.stay_in(unsent.bytes.enter(client));
        }
        std::future::poll_fn(|context| shared.poll_begin(context)).await.map_err(BodyNotStarted::Fault)
    }

    /// Lends the body to one attempt.
    pub(crate) fn attempt_body(&self) -> UploadBody {
        UploadBody { shared: self.0.clone(), taken: None, _held: None }
    }

    /// Lends the body to the only attempt: nothing of it is kept for another.
    pub(crate) fn only_attempt_body(&self) -> UploadBody {
        let taken = self.0.as_ref().and_then(|shared| shared.source().take());
        UploadBody { taken, ..self.attempt_body() }
    }

    /// Whether it can be sent to another upstream: none has read any of it, or all of it is still here.
    pub(crate) fn is_whole(&self) -> bool {
        self.0.as_ref().is_none_or(|shared| shared.source().is_some())
    }

    /// Whether the request has no body.
    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Whether HTTP/1 must send it in chunks: its length is unknown, or trailers are announced and may come.
    pub(crate) fn is_chunked(&self, headers: &HeaderMap) -> bool {
        self.0.as_ref().is_some_and(|shared| {
            shared.size.exact().is_none() || shared.trailers.is_some() && headers.contains_key(TRAILER)
        })
    }

    /// Its length, where that is known in advance.
    pub(crate) fn length(&self) -> Option<u64> {
        self.0.as_ref().map_or(Some(0), |shared| shared.size.exact())
    }

    pub(crate) fn fault(&self) -> Option<Fault> {
        let fault = |shared: &Arc<UploadShared>| *shared.fault.lock().unwrap_or_else(PoisonError::into_inner);
        self.0.as_ref().and_then(fault)
    }

    /// The deadline of an answer: `timeout` after the last byte of the request was sent. Time in which the gateway
    /// waits for the client does not count.
    pub(crate) fn due(&self, begun: Instant, timeout: Duration) -> Instant {
        let since = self.0.as_ref().map_or(begun, |shared| {
            let is_awaited = shared.is_awaited.load(Ordering::Relaxed);
            if is_awaited { Instant::now() } else { shared.moved_at().max(begun) }
        });
        since + timeout
    }

    /// Runs `sending`, and returns `None` if the deadline passes.
    pub(crate) async fn in_time<F: Future>(&self, timeout: Duration, sending: F) -> Option<F::Output> {
        let (mut sending, begun) = (std::pin::pin!(sending), Instant::now());
        let mut due = begun + timeout;
        loop {
            if let Ok(sent) = tokio::time::timeout_at(due, sending.as_mut()).await {
                return Some(sent);
            }
            due = self.due(begun, timeout);
            if due <= Instant::now() {
                return None;
            }
        }
    }

    /// The answer has begun. From now on the body has no minimum rate, because a stream in both directions may pause.
    pub(crate) fn answered(&self) {
        if let Some(shared) = &self.0 {
            shared.is_answered.store(true, Ordering::Relaxed);
        }
    }
}

impl UploadShared {
    fn source(&self) -> MutexGuard<'_, Option<Source>> {
        self.source.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the body for an attempt that begins to read it: a copy if the whole body is here, or else the body itself.
    fn take(&self, context: &mut Context<'_>) -> Option<Source> {
        let mut source = self.source();
        let copy = source.as_mut()?.copy(context);
        copy.or_else(|| source.take())
    }

    /// Reads until there is something to send.
    fn poll_begin(&self, context: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        let mut source = self.source();
        let Some(source) = source.as_mut() else { return Poll::Ready(Ok(())) };
        while !source.has_begun(self.size.exact()) {
            match ready!(source.poll_client(context, AnswerState::Unanswered)) {
                Some(Ok(frame)) => source.hold(frame),
                Some(Err(fault)) => {
                    self.fail(fault);
                    return Poll::Ready(Err(fault));
                }
                None => break,
            }
        }
        Poll::Ready(Ok(()))
    }

    fn fail(&self, fault: Fault) {
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = Some(fault);
    }

    fn asked(&self) -> AnswerState {
        if self.is_answered.load(Ordering::Relaxed) { AnswerState::Answered } else { AnswerState::Unanswered }
    }

    fn moves(&self) {
        let since = u64::try_from(self.begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.moved.store(since, Ordering::Relaxed);
    }

    fn moved_at(&self) -> Instant {
        self.begun + Duration::from_micros(self.moved.load(Ordering::Relaxed))
    }
}

/// A request's body, as a connection to an upstream reads it.
pub(crate) struct UploadBody {
    shared: Option<Arc<UploadShared>>,
    taken: Option<Source>,
    _held: Option<HeldPermits>,
}

impl UploadBody {
    /// Adds permits that are held until the body is read, even if the answer ends earlier.
    pub(crate) fn holding(self, held: Option<HeldPermits>) -> Self {
        Self { _held: held, ..self }
    }
}

impl Body for UploadBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> FramePoll {
        let this = self.get_mut();
        let Some(shared) = &this.shared else { return Poll::Ready(None) };
        if this.taken.is_none() {
            this.taken = shared.take(context);
        }
        let Some(source) = &mut this.taken else { return Poll::Ready(None) };
        let polled = loop {
            match source.poll_next(context, shared.asked()) {
                Poll::Ready(Some(Ok(mut frame))) => match (frame.trailers_mut(), &shared.trailers) {
                    (None, _) => break Poll::Ready(Some(Ok(frame))),
                    (Some(_), None) => {}
                    (Some(fields), Some(trailers)) => {
                        trailers.clean(fields);
                        if !fields.is_empty() {
                            break Poll::Ready(Some(Ok(frame)));
                        }
                    }
                },
                polled => break polled,
            }
        };
        shared.is_awaited.store(polled.is_pending(), Ordering::Relaxed);
        polled.map(|frame| match frame? {
            Ok(frame) => {
                shared.moves();
                Some(Ok(frame))
            }
            Err(fault) => {
                shared.fail(fault);
                Some(Err("the client's body did not arrive".into()))
            }
        })
    }

    fn is_end_stream(&self) -> bool {
        match &self.taken {
            Some(source) => source.is_end_stream(),
            None => self.shared.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        let untaken = || self.shared.as_ref().map_or(SizeHint::with_exact(0), |shared| shared.size);
        self.taken.as_ref().map_or_else(untaken, Source::size_hint)
    }
}

#[cfg(test)]
mod tests;
