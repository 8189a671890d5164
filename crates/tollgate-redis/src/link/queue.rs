//! Requests on their way to a shard. The first goes at once; what comes while enough rounds are under way goes out together.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redis::Value;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::Time;
use super::class::Failure;
use crate::script::Asked;

/// Rounds that a shard has under way at a time: one is decided while the others travel.
const ROUNDS_MAX: usize = 4;
/// Requests of one round, and keys of all its requests: a round must not keep the store from others for long.
const ROUND_REQUESTS_MAX: usize = 64;
const ROUND_KEYS_MAX: usize = 256;

/// A request that waits for its answer.
pub(super) struct Waiting {
    pub(super) asked: Asked,
    pub(super) time: Time,
    pub(super) deadline: Instant,
    claim: Claim,
    reply: oneshot::Sender<Result<Value, Failure>>,
}

/// Who has a request: whoever claims it first, the one who sends it or the one who gives up on it.
#[derive(Clone)]
pub(super) struct Claim(Arc<AtomicBool>);

impl Claim {
    fn new() -> Self {
        Self(Arc::new(AtomicBool::new(false)))
    }

    /// Whether it was free until now.
    pub(super) fn take(&self) -> bool {
        // Relaxed: the swap alone decides; what belongs to a request comes through a channel or a lock.
        !self.0.swap(true, Ordering::Relaxed)
    }
}

impl Waiting {
    pub(super) fn new(
        asked: Asked,
        time: Time,
        deadline: Instant,
    ) -> (Self, Claim, oneshot::Receiver<Result<Value, Failure>>) {
        let (reply, answer) = oneshot::channel();
        let claim = Claim::new();
        (Self { asked, time, deadline, claim: claim.clone(), reply }, claim, answer)
    }

    /// Takes it for sending, unless its asker has given up.
    pub(super) fn claim(self) -> Option<Self> {
        self.claim.take().then_some(self)
    }

    pub(super) fn answer(self, result: Result<Value, Failure>) {
        // Its asker may be gone; then nobody wants to know.
        let _ = self.reply.send(result);
    }
}

/// What waits, and how many rounds are under way.
#[derive(Default)]
pub(super) struct Queue {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    waiting: VecDeque<Waiting>,
    rounds: usize,
}

/// The right to have a round under way; given back when it is dropped.
pub(super) struct Turn<'a>(&'a Queue);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.lock().rounds -= 1;
    }
}

impl Queue {
    /// Lines up, one directly after the other. Whether the caller must start a round, since nobody who is under way will take them
    /// along.
    pub(super) fn push(&self, waiting: impl IntoIterator<Item = Waiting>) -> bool {
        let mut inner = self.lock();
        inner.waiting.extend(waiting);
        let starts = inner.rounds < ROUNDS_MAX;
        inner.rounds += usize::from(starts);
        starts
    }

    /// The turn that [`Queue::push`] announced.
    pub(super) fn turn(&self) -> Turn<'_> {
        Turn(self)
    }

    /// The requests of the next round. None: the turn is over.
    pub(super) fn next<'a>(&'a self, turn: Turn<'a>) -> Option<(Vec<Waiting>, Turn<'a>)> {
        let mut inner = self.lock();
        let (mut requests, mut keys) = (Vec::new(), 0);
        while let Some(first) = inner.waiting.front() {
            let full = requests.len() >= ROUND_REQUESTS_MAX || keys + first.asked.keys.len() > ROUND_KEYS_MAX;
            if full && !requests.is_empty() {
                break;
            }
            let Some(first) = inner.waiting.pop_front() else { break };
            keys += first.asked.keys.len();
            requests.push(first);
        }
        if requests.is_empty() {
            // Under the same lock, so that nobody lines up in between and is forgotten.
            inner.rounds -= 1;
            drop(inner);
            std::mem::forget(turn);
            return None;
        }
        Some((requests, turn))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
