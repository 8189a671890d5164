//! Bodies on their way: never kept, only handed on, so that whoever is slow slows the other side. What is added is patience: for a client
//! that does not send, until the upstream has answered; and for an upstream that does not.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http::header::TRAILER;
use http_body_util::Full;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::{Body as _, Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep};

use super::answer::Answered;
use super::carried::Carried;
use super::trailers::{self, Trailers};
use super::upstream::Place;

/// The error of any body here.
pub(crate) type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// The body of any answer, before limits have looked at it and after.
pub(crate) enum Body {
    /// A few bytes of the gateway's own.
    Own(Full<Bytes>),
    /// What an upstream sends.
    Download(Download),
    /// Either, past other layers.
    Boxed(UnsyncBoxBody<Bytes, BodyError>),
}
pub(crate) type Limited = tollgate_tower::Body<Body>;

impl Default for Body {
    fn default() -> Self {
        Body::Own(Full::default())
    }
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.get_mut() {
            Body::Own(text) => Pin::new(text).poll_frame(context).map_err(|never| match never {}),
            Body::Download(body) => Pin::new(body).poll_frame(context),
            Body::Boxed(body) => Pin::new(body).poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Body::Own(text) => text.is_end_stream(),
            Body::Download(body) => body.is_end_stream(),
            Body::Boxed(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Body::Own(text) => text.size_hint(),
            Body::Download(body) => body.size_hint(),
            Body::Boxed(body) => body.size_hint(),
        }
    }
}

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

/// The body of a request, before an upstream has begun to read it. It can be lent to one after the other as long as none has. Most
/// requests have none, and need nothing for it.
#[derive(Clone)]
pub(super) struct Upload(Option<Arc<Shared>>);

struct Shared {
    /// Locked for the moment of taking it.
    body: Mutex<Option<Carried>>,
    size: SizeHint,
    /// What may pass of its trailers; none where none can come, or nobody wants them.
    trailers: Option<Arc<Trailers>>,
    fault: Mutex<Option<Fault>>,
    begun: Instant,
    /// When the last of it went on, in microseconds since then. Relaxed, as the flags: all only tell somebody to wait on.
    moved: AtomicU64,
    /// Whether an upstream would read on, and the client sends nothing.
    is_awaited: AtomicBool,
    is_answered: AtomicBool,
}

impl Upload {
    pub(super) fn new(body: Carried, trailers: Option<Arc<Trailers>>) -> Self {
        if body.is_end_stream() {
            return Self::empty();
        }
        Self(Some(Arc::new(Shared {
            size: body.size_hint(),
            trailers,
            body: Mutex::new(Some(body)),
            fault: Mutex::new(None),
            begun: Instant::now(),
            moved: AtomicU64::new(0),
            is_awaited: AtomicBool::new(false),
            is_answered: AtomicBool::new(false),
        })))
    }

    /// The body of a request that has none.
    pub(super) const fn empty() -> Self {
        Self(None)
    }

    /// The body for one attempt.
    pub(super) fn lend(&self) -> Lent {
        Lent { shared: self.0.clone(), taken: None, bytes: 0, waited: Duration::ZERO, waiting: None }
    }

    /// Whether nobody has read any of it, so that it can be sent to another.
    pub(super) fn is_whole(&self) -> bool {
        let is_there =
            |shared: &Arc<Shared>| shared.body.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        self.0.as_ref().is_none_or(is_there)
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Whether HTTP/1 has to send it in chunks: its length is not known, or trailers are announced and may come.
    pub(super) fn is_chunked(&self, headers: &HeaderMap) -> bool {
        self.0.as_ref().is_some_and(|shared| {
            shared.size.exact().is_none() || shared.trailers.is_some() && headers.contains_key(TRAILER)
        })
    }

    /// How long it is, where that is known before it has come.
    pub(super) fn length(&self) -> Option<u64> {
        self.0.as_ref().map_or(Some(0), |shared| shared.size.exact())
    }

    pub(super) fn fault(&self) -> Option<Fault> {
        let fault = |shared: &Arc<Shared>| *shared.fault.lock().unwrap_or_else(PoisonError::into_inner);
        self.0.as_ref().and_then(fault)
    }

    /// Until when an answer must come that was asked for at an instant: so long after the last byte went on. A client that is awaited has
    /// its own time.
    pub(super) fn due(&self, begun: Instant, patience: Duration) -> Instant {
        let since = self.0.as_ref().map_or(begun, |shared| {
            let is_awaited = shared.is_awaited.load(Ordering::Relaxed);
            if is_awaited { Instant::now() } else { shared.moved_at().max(begun) }
        });
        since + patience
    }

    /// What comes of sending it, unless nothing does in time.
    pub(super) async fn in_time<F: Future>(&self, patience: Duration, sending: F) -> Option<F::Output> {
        let (mut sending, begun) = (std::pin::pin!(sending), Instant::now());
        let mut due = begun + patience;
        loop {
            if let Ok(sent) = tokio::time::timeout_at(due, sending.as_mut()).await {
                return Some(sent);
            }
            due = self.due(begun, patience);
            if due <= Instant::now() {
                return None;
            }
        }
    }

    /// From now on the answer sets the pace: a stream in both directions may rest.
    pub(super) fn answered(&self) {
        if let Some(shared) = &self.0 {
            shared.is_answered.store(true, Ordering::Relaxed);
        }
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
    shared: Option<Arc<Shared>>,
    taken: Option<Carried>,
    bytes: u64,
    /// How long the client has kept us waiting, and since when it does now.
    waited: Duration,
    waiting: Option<(Instant, Pin<Box<Sleep>>)>,
}

impl Lent {
    fn fail(&self, fault: Fault) -> BodyError {
        if let Some(shared) = &self.shared {
            *shared.fault.lock().unwrap_or_else(PoisonError::into_inner) = Some(fault);
        }
        "the client's body did not arrive".into()
    }

    fn is_answered(&self) -> bool {
        self.shared.as_ref().is_some_and(|shared| shared.is_answered.load(Ordering::Relaxed))
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
        if let (None, Some(shared)) = (&this.taken, &this.shared) {
            this.taken = shared.body.lock().unwrap_or_else(PoisonError::into_inner).take();
        }
        let Some(body) = &mut this.taken else { return Poll::Ready(None) };
        let allowed = this.shared.as_ref().and_then(|shared| shared.trailers.as_ref());
        let polled = loop {
            match Pin::new(&mut *body).poll_frame(context) {
                Poll::Ready(Some(Ok(mut frame))) => match (frame.trailers_mut(), allowed) {
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
        if let Some(shared) = &this.shared {
            shared.is_awaited.store(polled.is_pending(), Ordering::Relaxed);
        }
        match polled {
            Poll::Ready(Some(Ok(frame))) => {
                this.bytes += frame.data_ref().map_or(0, |bytes| u64::try_from(bytes.len()).unwrap_or(0));
                if let Some((since, _)) = this.waiting.take() {
                    this.waited += since.elapsed();
                }
                if let Some(shared) = &this.shared {
                    shared.moves();
                }
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
                if is_over && !this.is_answered() {
                    return Poll::Ready(Some(Err(this.fail(Fault::TooSlow))));
                }
                Poll::Pending
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.taken {
            Some(body) => body.is_end_stream(),
            None => self.shared.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        let told = || self.shared.as_ref().map_or(SizeHint::with_exact(0), |shared| shared.size);
        self.taken.as_ref().map_or_else(told, Carried::size_hint)
    }
}

/// The body of an upstream's answer. What it holds is given back when it ends or is given up.
pub(super) struct Download {
    pub(super) body: Answered,
    /// How long the upstream may send nothing while the client would read on.
    pub(super) idle: Duration,
    pub(super) waiting: Option<Pin<Box<Sleep>>>,
    /// The place at the upstream.
    pub(super) _place: Place,
}

impl hyper::body::Body for Download {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        let mut polled = Pin::new(&mut this.body).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &mut polled
            && let Some(fields) = frame.trailers_mut()
        {
            trailers::clean_answer(fields);
        }
        if polled.is_ready() {
            this.waiting = None;
            return polled;
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
    pub(super) body: Limited,
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

    /// A body that comes, and what says how far it is.
    fn coming() -> (Upload, Arc<Shared>) {
        let upload = Upload::new(Carried::from(Bytes::from_static(b"x")), None);
        let shared = upload.0.clone().unwrap();
        (upload, shared)
    }

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
        let (upload, moving) = coming();
        tokio::spawn(async move {
            sleep(second).await;
            moving.moves();
        });
        assert_eq!(late(&upload).await, 3);
        // The client sends nothing for ten seconds, and then the last byte.
        let (upload, moving) = coming();
        moving.is_awaited.store(true, Ordering::Relaxed);
        tokio::spawn(async move {
            sleep(10 * second).await;
            moving.moves();
            moving.is_awaited.store(false, Ordering::Relaxed);
        });
        assert_eq!(late(&upload).await, 12);
        // An answer in time.
        assert_eq!(Upload::empty().in_time(2 * second, sleep(second)).await, Some(()));
    }
}
