//! The body of a request on its way to an upstream. Its beginning is read ahead of the upstream's slot; the rest is handed on as it comes.
//! A client that is awaited must keep its pace until the upstream has answered.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http::header::TRAILER;
use hyper::body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep};
use tollgate_tower::HeldPermits;

use super::body::BodyError;
use super::carried::Carried;
use super::room::{Room, Stay};
use super::shares::{Client, Full, Shares};
use super::trailers::Trailers;
use crate::listen::{Allowance, Pace};

/// Bodies up to this length are there as a whole before they take an upstream's slot, where their length is known.
const SMALL_BYTES_MAX: u64 = 64 << 10;
/// Most bytes of such bodies that wait for their rest, of all requests. A client has a part of them: [`Room`].
const AHEAD_BYTES_MAX: usize = 64 << 20;
/// Most requests whose body is awaited before they take a slot, and a client's share of them, in per cent.
const UNBEGUN_MAX: usize = 8_192;
const UNBEGUN_PER_CLIENT: u32 = 25;

/// What became of a request's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    TooSlow,
    CutOff,
}

/// Why a body did not begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unbegun {
    Fault(Fault),
    /// As many bodies are awaited as may be.
    Full(Full),
}

/// What bodies may take that have not begun to be sent on, for all requests of a gateway.
pub(super) struct Unsent {
    requests: Arc<Shares>,
    bytes: Arc<Room>,
}

impl Default for Unsent {
    fn default() -> Self {
        let share = Shares::part(UNBEGUN_MAX, UNBEGUN_PER_CLIENT);
        Self { requests: Shares::new(UNBEGUN_MAX, share), bytes: Room::of(AHEAD_BYTES_MAX) }
    }
}

/// The body of a request, before an upstream has begun to read it. It can be lent to one after the other as long as none has. Most
/// requests have none, and need nothing for it.
#[derive(Clone)]
pub(super) struct Upload(Option<Arc<Shared>>);

struct Shared {
    /// Locked to read the beginning of it, and for the moment of taking it.
    source: Mutex<Option<Source>>,
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
    pub(super) fn new(body: Carried, trailers: Option<Arc<Trailers>>, pace: Pace) -> Self {
        if body.is_end_stream() {
            return Self::empty();
        }
        Self(Some(Arc::new(Shared {
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

    /// The body of a request that has none.
    pub(super) const fn empty() -> Self {
        Self(None)
    }

    /// Waits until there is something to send: all of a small body, else the first bytes.
    ///
    /// # Errors
    /// When it does not come, or too many are awaited.
    pub(super) async fn begin(&self, unsent: &Unsent, client: Client) -> Result<(), Unbegun> {
        let Some(shared) = &self.0 else { return Ok(()) };
        // As a rule it is there with the head, and takes nothing.
        let polled = std::future::poll_fn(|context| Poll::Ready(shared.poll_begin(context))).await;
        if let Poll::Ready(begun) = polled {
            return begun.map_err(Unbegun::Fault);
        }
        let _awaited = unsent.requests.try_take(client).map_err(Unbegun::Full)?;
        if let Some(source) = shared.source().as_mut() {
            source.stay_in(unsent.bytes.enter(client));
        }
        std::future::poll_fn(|context| shared.poll_begin(context)).await.map_err(Unbegun::Fault)
    }

    /// The body for one attempt.
    pub(super) fn lend(&self) -> Lent {
        Lent { shared: self.0.clone(), taken: None, _held: None }
    }

    /// Whether no upstream has read any of it, so that it can be sent to another.
    pub(super) fn is_whole(&self) -> bool {
        self.0.as_ref().is_none_or(|shared| shared.source().is_some())
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        self.0.as_ref().map_or(SizeHint::with_exact(0), |shared| shared.size)
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
    fn source(&self) -> MutexGuard<'_, Option<Source>> {
        self.source.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads until there is something to send.
    fn poll_begin(&self, context: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        let mut source = self.source();
        let Some(source) = source.as_mut() else { return Poll::Ready(Ok(())) };
        while !source.has_begun(self.size.exact()) {
            match ready!(source.poll_client(context, Asked::Unanswered)) {
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

    fn asked(&self) -> Asked {
        if self.is_answered.load(Ordering::Relaxed) { Asked::Answered } else { Asked::Unanswered }
    }

    fn moves(&self) {
        let since = u64::try_from(self.begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.moved.store(since, Ordering::Relaxed);
    }

    fn moved_at(&self) -> Instant {
        self.begun + Duration::from_micros(self.moved.load(Ordering::Relaxed))
    }
}

/// Whether a request has its answer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asked {
    Answered,
    Unanswered,
}

/// Where a body comes from: what was read ahead, and then the client.
struct Source {
    ahead: VecDeque<Frame<Bytes>>,
    ahead_bytes: usize,
    /// The room that they take while their rest is awaited, and whether there was none for all of them.
    stay: Option<Arc<Stay>>,
    is_cramped: bool,
    body: Carried,
    is_over: bool,
    allowance: Allowance,
    /// Since when the client is awaited.
    waiting: Option<(Instant, Pin<Box<Sleep>>)>,
}

impl Source {
    fn new(body: Carried, pace: Pace) -> Self {
        Self {
            ahead: VecDeque::new(),
            ahead_bytes: 0,
            stay: None,
            is_cramped: false,
            body,
            is_over: false,
            allowance: Allowance::new(pace),
            waiting: None,
        }
    }

    /// Whether there is something to send of a body of this length.
    fn has_begun(&self, length: Option<u64>) -> bool {
        let wanted = length.filter(|length| *length <= SMALL_BYTES_MAX && !self.is_cramped).unwrap_or(1);
        self.is_over || u64::try_from(self.ahead_bytes).unwrap_or(u64::MAX) >= wanted
    }

    /// From here on what is read ahead takes room.
    fn stay_in(&mut self, stay: Arc<Stay>) {
        self.is_cramped = !stay.take(self.ahead_bytes);
        self.stay = Some(stay);
    }

    fn hold(&mut self, frame: Frame<Bytes>) {
        let bytes = frame.data_ref().map_or(0, Bytes::len);
        self.ahead_bytes = self.ahead_bytes.saturating_add(bytes);
        if let Some(stay) = &self.stay {
            self.is_cramped |= !stay.take(bytes);
        }
        self.ahead.push_back(frame);
    }

    /// The next frame for an upstream.
    fn poll_next(
        &mut self,
        context: &mut Context<'_>,
        asked: Asked,
    ) -> Poll<Option<Result<Frame<Bytes>, Fault>>> {
        if let Some(frame) = self.ahead.pop_front() {
            return Poll::Ready(Some(Ok(frame)));
        }
        self.stay = None;
        self.poll_client(context, asked)
    }

    /// The next frame of the client. One that keeps us waiting must have earned it, as long as it has no answer.
    fn poll_client(
        &mut self,
        context: &mut Context<'_>,
        asked: Asked,
    ) -> Poll<Option<Result<Frame<Bytes>, Fault>>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) else {
            let left = self.allowance.left();
            let (_, timer) = self.waiting.get_or_insert_with(|| (Instant::now(), Box::pin(sleep(left))));
            return match timer.as_mut().poll(context) {
                Poll::Ready(()) if asked == Asked::Unanswered => Poll::Ready(Some(Err(Fault::TooSlow))),
                _ => Poll::Pending,
            };
        };
        if let Some((since, _)) = self.waiting.take() {
            self.allowance.spend(since.elapsed());
        }
        Poll::Ready(match frame {
            Some(Ok(frame)) => {
                self.allowance.earn(frame.data_ref().map_or(0, Bytes::len));
                Some(Ok(frame))
            }
            Some(Err(_)) => Some(Err(Fault::CutOff)),
            None => {
                self.is_over = true;
                None
            }
        })
    }

    fn is_end_stream(&self) -> bool {
        self.ahead.is_empty() && (self.is_over || self.body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        let ahead = self.ahead.iter().filter_map(Frame::data_ref).map(Bytes::len).sum::<usize>();
        let rest = if self.is_over { Some(0) } else { self.body.size_hint().exact() };
        let exact = rest.and_then(|rest| rest.checked_add(u64::try_from(ahead).ok()?));
        exact.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

/// A request's body, as an upstream's connection reads it.
pub(super) struct Lent {
    shared: Option<Arc<Shared>>,
    taken: Option<Source>,
    _held: Option<HeldPermits>,
}

impl Lent {
    /// The same, with permits that are held until it is read, however early the answer is over.
    pub(super) fn holding(self, held: Option<HeldPermits>) -> Self {
        Self { _held: held, ..self }
    }
}

impl Body for Lent {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        let Some(shared) = &this.shared else { return Poll::Ready(None) };
        if this.taken.is_none() {
            this.taken = shared.source().take();
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
        let told = || self.shared.as_ref().map_or(SizeHint::with_exact(0), |shared| shared.size);
        self.taken.as_ref().map_or_else(told, Source::size_hint)
    }
}

/// An upload as the body of a request, for what stands between its beginning and the upstream.
pub(super) struct Begun {
    pub(super) upload: Upload,
    lent: Lent,
}

impl From<Upload> for Begun {
    fn from(upload: Upload) -> Self {
        Self { lent: upload.lend(), upload }
    }
}

impl Body for Begun {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        Pin::new(&mut self.get_mut().lent).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.lent.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.upload.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    const PACE: Pace = Pace { bytes: 300, over: Duration::from_secs(60), first: Duration::from_secs(20) };

    /// A body that comes, and what says how far it is.
    fn coming() -> (Upload, Arc<Shared>) {
        let upload = Upload::new(Carried::from(Bytes::from_static(b"x")), None, PACE);
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

    /// A body whose length is told, and the hand that sends its parts.
    fn of_length(length: Option<u64>) -> (Upload, tokio::sync::mpsc::UnboundedSender<&'static [u8]>) {
        let (send, parts) = tokio::sync::mpsc::unbounded_channel();
        (Upload::new(Carried::Boxed(Parts { parts, length }.boxed_unsync()), None, PACE), send)
    }

    /// A body that a test sends part by part.
    struct Parts {
        parts: tokio::sync::mpsc::UnboundedReceiver<&'static [u8]>,
        length: Option<u64>,
    }

    impl Body for Parts {
        type Data = Bytes;
        type Error = BodyError;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
            self.parts.poll_recv(context).map(|part| Some(Ok(Frame::data(Bytes::from_static(part?)))))
        }

        fn size_hint(&self) -> SizeHint {
            self.length.map_or_else(SizeHint::default, SizeHint::with_exact)
        }
    }

    fn client() -> Client {
        Client::One(std::net::IpAddr::from([192, 0, 2, 1]))
    }

    async fn seconds_until_begun(upload: &Upload, unsent: &Unsent) -> (u64, Result<(), Unbegun>) {
        let begun = Instant::now();
        let result = upload.begin(unsent, client()).await;
        (begun.elapsed().as_secs(), result)
    }

    /// A small body begins when all of it is there; a large one, and one of unknown length, with its first bytes. All of it is sent on.
    #[tokio::test(start_paused = true)]
    async fn a_body_begins_when_there_is_something_to_send() {
        for (length, seconds) in [(Some(6), 10), (Some(SMALL_BYTES_MAX + 1), 5), (None, 5)] {
            let (upload, send) = of_length(length);
            tokio::spawn(async move {
                for part in [&b"abc"[..], &b"def"[..]] {
                    sleep(Duration::from_secs(5)).await;
                    send.send(part).unwrap();
                }
            });
            let unsent = Unsent::default();
            assert_eq!(seconds_until_begun(&upload, &unsent).await, (seconds, Ok(())), "{length:?}");
            assert!(upload.is_whole(), "it can be sent to any upstream");
            let sent = upload.lend().collect().await.unwrap().to_bytes();
            assert_eq!(&sent[..], b"abcdef");
            assert!(!upload.is_whole());
        }
    }

    /// A body that never comes is given up after its first time, one that trickles not much later. Neither holds anything then.
    #[tokio::test(start_paused = true)]
    async fn a_body_that_does_not_begin_is_given_up() {
        let unsent = Unsent::default();
        let (upload, send) = of_length(Some(1_000));
        assert_eq!(seconds_until_begun(&upload, &unsent).await, (20, Err(Unbegun::Fault(Fault::TooSlow))));
        drop(send);
        let (upload, send) = of_length(Some(1_000));
        tokio::spawn(async move {
            while send.send(b"x").is_ok() {
                sleep(Duration::from_secs(1)).await; // Each byte earns a fifth of a second.
            }
        });
        let (seconds, result) = seconds_until_begun(&upload, &unsent).await;
        assert!((20..30).contains(&seconds) && result == Err(Unbegun::Fault(Fault::TooSlow)), "{seconds}");
        assert_eq!(upload.fault(), Some(Fault::TooSlow));
    }

    /// Where there is no room to wait for all of a small body, it takes its slot with what there is; where too many are awaited, it is
    /// refused. Others have their own share of both.
    #[tokio::test(start_paused = true)]
    async fn what_is_awaited_is_bounded() {
        let unsent = Unsent { requests: Shares::new(4, 2), bytes: Room::of(8 * 2) };
        let (upload, send) = of_length(Some(6));
        send.send(b"abc").unwrap();
        assert_eq!(
            seconds_until_begun(&upload, &unsent).await,
            (0, Ok(())),
            "a client has room for two bytes"
        );
        let waiting = [of_length(Some(6)), of_length(Some(6))];
        let first = waiting[0].0.begin(&unsent, client());
        let second = waiting[1].0.begin(&unsent, client());
        let (third, _send) = of_length(Some(6));
        let (fourth, other) = of_length(Some(1));
        let other_client = Client::One(std::net::IpAddr::from([192, 0, 2, 2]));
        let rest = async {
            tokio::task::yield_now().await;
            assert_eq!(third.begin(&unsent, client()).await, Err(Unbegun::Full(Full::Client)));
            let sent = async { other.send(b"x").unwrap() };
            assert_eq!(tokio::join!(fourth.begin(&unsent, other_client), sent).0, Ok(()));
        };
        tokio::select! {
            biased;
            _ = first => panic!("nothing came of it"),
            _ = second => panic!("nothing came of it"),
            () = rest => {}
        }
    }

    /// The pace holds while the upstream reads, too, until it has answered.
    #[tokio::test(start_paused = true)]
    async fn the_pace_holds_until_the_answer() {
        let (upload, send) = of_length(None);
        send.send(b"x").unwrap();
        upload.begin(&Unsent::default(), client()).await.unwrap();
        let begun = Instant::now();
        assert!(upload.lend().collect().await.is_err());
        assert_eq!((begun.elapsed().as_secs(), upload.fault()), (20, Some(Fault::TooSlow)));
        drop(send);
        let (upload, send) = of_length(None);
        upload.answered();
        tokio::spawn(async move {
            sleep(Duration::from_secs(3_600)).await;
            send.send(b"late").unwrap();
        });
        assert_eq!(&upload.lend().collect().await.unwrap().to_bytes()[..], b"late");
    }
}
