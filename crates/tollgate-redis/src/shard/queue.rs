//! Requests waiting to be sent to a shard. The first is flushed immediately; those that arrive while enough flushes are
//! in flight leave together.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redis::Value;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::reply::Failure;
use crate::script::{EncodedRequest, InjectedTime};

/// Maximum number of flushes in flight per shard: the store decides one while the others are on the network.
const FLUSHES_MAX: usize = 4;
/// Maximum number of requests, and of their keys, in one flush: a flush must not block the store for long.
const FLUSH_REQUESTS_MAX: usize = 64;
const FLUSH_KEYS_MAX: usize = 256;

/// A request waiting for its answer.
pub(crate) struct QueuedRequest {
    pub(crate) request: EncodedRequest,
    pub(crate) time: InjectedTime,
    pub(crate) deadline: Instant,
    claim: SendClaim,
    reply: oneshot::Sender<Result<Value, Failure>>,
}

/// Decides between the sender and a caller that gives up. The first to claim the request has it.
#[derive(Clone)]
pub(crate) struct SendClaim(Arc<AtomicBool>);

impl SendClaim {
    fn new() -> Self {
        Self(Arc::new(AtomicBool::new(false)))
    }

    /// Claims the request. Returns whether it was unclaimed.
    pub(crate) fn take(&self) -> bool {
        // Relaxed: the swap alone decides, and the request itself travels through a channel or a lock.
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

    /// Claims the request for sending, unless its caller gave up.
    pub(crate) fn claim(self) -> Option<Self> {
        self.claim.take().then_some(self)
    }

    pub(crate) fn answer(self, result: Result<Value, Failure>) {
        // The caller may have gone away.
        let _ = self.reply.send(result);
    }
}

/// The queued requests, and the number of flushes in flight.
#[derive(Default)]
pub(crate) struct Queue {
    state: Mutex<QueueState>,
}

#[derive(Default)]
struct QueueState {
    waiting: VecDeque<QueuedRequest>,
    flushes: usize,
}

/// Permits one flush in flight; released when dropped.
pub(crate) struct FlushPermit<'a>(&'a Queue);

impl Drop for FlushPermit<'_> {
    fn drop(&mut self) {
        self.0.lock().flushes -= 1;
    }
}

impl Queue {
    /// Enqueues the requests contiguously. Returns true if the caller must start a flush because none in flight will
    /// pick them up.
    pub(crate) fn push(&self, waiting: impl IntoIterator<Item = QueuedRequest>) -> bool {
        let mut state = self.lock();
        state.waiting.extend(waiting);
        let starts = state.flushes < FLUSHES_MAX;
        state.flushes += usize::from(starts);
        starts
    }

    /// The permit that [`Queue::push`] reserved.
    pub(crate) fn flush_permit(&self) -> FlushPermit<'_> {
        FlushPermit(self)
    }

    /// The requests of the next flush. None releases the permit.
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
            // Released under the same lock, so that no request is enqueued in between and forgotten.
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
