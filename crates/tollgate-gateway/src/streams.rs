//! The activity of the requests on one HTTP/2 connection: whether there are any, and whether the client reads its
//! answers.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, SizeHint};
use tokio::time::Instant;

use crate::body::Limited;
use crate::cause::{BodyError, FramePoll};
use crate::listen::{ConnectionActivity, WRITE_TIMEOUT};

/// How long an HTTP/2 connection may last without a request.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// The activity of an HTTP/2 connection.
pub(crate) enum State {
    Busy,
    /// There was no request for `IDLE_TIMEOUT`.
    Idle,
    /// The client does not read one of its answers.
    Stalled,
}

/// The requests of an HTTP/2 connection.
pub(crate) struct Streams {
    start: Instant,
    /// When the last one began or ended. Relaxed, as all atomics here: the times are read every few seconds.
    moved_at: AtomicU64,
    /// Locked when a request begins, and for each check.
    open: Mutex<Vec<Weak<ActivityCheck>>>,
    connection: Arc<ConnectionActivity>,
}

/// One request: when its body was last polled, and whether it had a part.
struct ActivityCheck {
    start: Instant,
    polled_at: AtomicU64,
    /// Whether the request waits for the upstream rather than for the client.
    awaits_upstream: AtomicBool,
}

/// A request that has begun. Its connection counts it until this is dropped.
pub(crate) struct ActiveRequest(Arc<ActivityCheck>, Arc<Streams>);

impl Streams {
    /// No requests yet, on a connection whose entry in the connection limit records their activity.
    pub(crate) fn new(connection: Arc<ConnectionActivity>) -> Self {
        Self { start: Instant::now(), moved_at: AtomicU64::new(0), open: Mutex::default(), connection }
    }

    pub(crate) fn begin(self: &Arc<Self>) -> ActiveRequest {
        let activity = Arc::new(ActivityCheck {
            start: self.start,
            polled_at: AtomicU64::new(0),
            awaits_upstream: AtomicBool::new(true),
        });
        self.moved();
        self.connection.begin();
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|activity| activity.strong_count() > 0);
        open.push(Arc::downgrade(&activity));
        ActiveRequest(activity, Arc::clone(self))
    }

    fn moved(&self) {
        self.moved_at.store(millis(self.start), Ordering::Relaxed);
    }

    pub(crate) fn is_idle(&self) -> bool {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.iter().all(|activity| activity.strong_count() == 0)
    }

    pub(crate) fn state(&self) -> State {
        let now = millis(self.start);
        if self.is_idle() {
            let since = now.saturating_sub(self.moved_at.load(Ordering::Relaxed));
            return if Duration::from_millis(since) > IDLE_TIMEOUT { State::Idle } else { State::Busy };
        }
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let is_stalled = |activity: Arc<ActivityCheck>| {
            let since = now.saturating_sub(activity.polled_at.load(Ordering::Relaxed));
            !activity.awaits_upstream.load(Ordering::Relaxed) && Duration::from_millis(since) > WRITE_TIMEOUT
        };
        if open.iter().filter_map(Weak::upgrade).any(is_stalled) { State::Stalled } else { State::Busy }
    }
}

fn millis(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX)
}

impl ActiveRequest {
    /// Begins another request on the same connection.
    pub(crate) fn again(&self) -> Self {
        self.1.begin()
    }

    /// Its body was polled, and was ready if it had a part or has ended.
    pub(crate) fn polled<T>(&self, progress: &Poll<T>) {
        let Self(activity, _) = self;
        activity.awaits_upstream.store(progress.is_pending(), Ordering::Relaxed);
        activity.polled_at.store(millis(activity.start), Ordering::Relaxed);
    }
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        self.1.moved();
        self.1.connection.end();
    }
}

/// The body of an answer. Its request is active until it is over.
pub(crate) struct ActiveBody {
    pub(crate) body: Limited,
    pub(crate) request: ActiveRequest,
}

impl Body for ActiveBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> FramePoll {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.body).poll_frame(context);
        this.request.polled(&polled);
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
