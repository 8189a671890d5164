//! Requests on their way to a shard. The first goes at once; what comes while enough flushes are under way goes out together.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redis::Value;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::reply::Failure;
use crate::script::{EncodedRequest, InjectedTime};

/// Rounds that a shard has under way at a time: one is decided while the others travel.
const FLUSHES_MAX: usize = 4;
/// Requests of one round, and keys of all its requests: a round must not keep the store from others for long.
const FLUSH_REQUESTS_MAX: usize = 64;
const FLUSH_KEYS_MAX: usize = 256;

/// A request that waits for its answer.
pub(crate) struct QueuedRequest {
    pub(crate) request: EncodedRequest,
    pub(crate) time: InjectedTime,
    pub(crate) deadline: Instant,
    claim: SendClaim,
    reply: oneshot::Sender<Result<Value, Failure>>,
}

/// Who has a request: whoever claims it first, the one who sends it or the one who gives up on it.
#[derive(Clone)]
pub(crate) struct SendClaim(Arc<AtomicBool>);

impl SendClaim {
    fn new() -> Self {
        Self(Arc::new(AtomicBool::new(false)))
    }

    /// Whether it was free until now.
    pub(crate) fn take(&self) -> bool {
        // Relaxed: the swap alone decides; what belongs to a request comes through a channel or a lock.
        !self.0.swap(true, Ordering::Relaxed)
    }
}

impl QueuedRequest {
    pub(crate) fn new(
        request: EncodedRequest,
        time: InjectedTime,
        deadline: Instant,
    ) -> (Self, SendClaim, oneshot::Receiver<Result<Value, Failure>>) {
        let (reply, answer) = oneshot::channel();
        let claim = SendClaim::new();
        (Self { request, time, deadline, claim: claim.clone(), reply }, claim, answer)
    }

    /// Takes it for sending, unless its asker has given up.
    pub(crate) fn claim(self) -> Option<Self> {
        self.claim.take().then_some(self)
    }

    pub(crate) fn answer(self, result: Result<Value, Failure>) {
        // Its asker may be gone; then nobody wants to know.
        let _ = self.reply.send(result);
    }
}

/// What waits, and how many flushes are under way.
#[derive(Default)]
pub(crate) struct Queue {
    state: Mutex<QueueState>,
}

#[derive(Default)]
struct QueueState {
    waiting: VecDeque<QueuedRequest>,
    flushes: usize,
}

/// The right to have a round under way; given back when it is dropped.
pub(crate) struct FlushPermit<'a>(&'a Queue);

impl Drop for FlushPermit<'_> {
    fn drop(&mut self) {
        self.0.lock().flushes -= 1;
    }
}

impl Queue {
    /// Lines up, one directly after the other. Whether the caller must start a round, since nobody who is under way will take them
    /// along.
    pub(crate) fn push(&self, waiting: impl IntoIterator<Item = QueuedRequest>) -> bool {
        let mut state = self.lock();
        state.waiting.extend(waiting);
        let starts = state.flushes < FLUSHES_MAX;
        state.flushes += usize::from(starts);
        starts
    }

    /// The permit that [`Queue::push`] announced.
    pub(crate) fn flush_permit(&self) -> FlushPermit<'_> {
        FlushPermit(self)
    }

    /// The requests of the next round. None: the permit is over.
    pub(crate) fn next<'a>(
        &'a self,
        permit: FlushPermit<'a>,
    ) -> Option<(Vec<QueuedRequest>, FlushPermit<'a>)> {
        let mut state = self.lock();
        let (mut requests, mut keys) = (Vec::new(), 0);
        while let Some(first) = state.waiting.front() {
            let full =
                requests.len() >= FLUSH_REQUESTS_MAX || keys + first.request.keys.len() > FLUSH_KEYS_MAX;
            if full && !requests.is_empty() {
                break;
            }
            let Some(first) = state.waiting.pop_front() else { break };
            keys += first.request.keys.len();
            requests.push(first);
        }
        if requests.is_empty() {
            // Under the same lock, so that nobody lines up in between and is forgotten.
            state.flushes -= 1;
            drop(state);
            std::mem::forget(permit);
            return None;
        }
        Some((requests, permit))
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
