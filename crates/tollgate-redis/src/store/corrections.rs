//! Units on their way back to counters, off every decision's path. Bounded in number and in time: a unit that comes back late may be given
//! to a window that never missed it, so it stays taken instead.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};

use crate::client::{Client, PendingReply};
use crate::reply::Failure;
use crate::script::{EncodedRequest, InjectedTime};

/// Corrections that may be on their way at a time.
const WAITING_MAX: u64 = 10_000;
/// How long one is tried, and how long each try may take at least.
const AGE_MAX: Duration = Duration::from_secs(1);
const TIMEOUT_MIN: Duration = Duration::from_millis(100);
/// The pause before it is tried again.
const PAUSE: Duration = Duration::from_millis(50);

pub(super) struct Corrections {
    client: Client,
    runtime: Handle,
    /// How long each try may take.
    timeout: Duration,
    waiting: Arc<AtomicU64>,
}

/// Counts one as long as it lives, whatever becomes of its task.
struct WaitingGuard(Arc<AtomicU64>);

impl Drop for WaitingGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Corrections {
    pub(super) fn new(client: Client, runtime: Handle, deadline: Duration) -> Self {
        Self { client, runtime, timeout: TIMEOUT_MIN.max(deadline), waiting: Arc::default() }
    }

    pub(super) fn waiting(&self) -> u64 {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Sends it, and again as long as it provably was not executed: twice would be a gift.
    pub(super) fn send(&self, request: EncodedRequest, time: InjectedTime) {
        let first = self.client.submit(request.clone(), time, Instant::now() + self.timeout);
        self.follow(request, first, time);
    }

    /// Does the same for one that is already lined up.
    pub(super) fn follow(
        &self,
        request: EncodedRequest,
        first: Result<PendingReply, Failure>,
        time: InjectedTime,
    ) {
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= WAITING_MAX {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            tracing::warn!("too many units are on their way back to the store; some stay taken");
            return;
        }
        let guard = WaitingGuard(Arc::clone(&self.waiting));
        let (client, timeout) = (self.client.clone(), self.timeout);
        self.runtime.spawn(async move {
            let _counted = guard;
            let began = Instant::now();
            let mut pending = first;
            loop {
                let answer = match pending {
                    Ok(pending) => pending.answer().await,
                    Err(failure) => Err(failure),
                };
                match answer {
                    Ok(_) => return,
                    Err(failure) if failure.may_have_run || began.elapsed() >= AGE_MAX => {
                        let class = failure.class.name();
                        tracing::warn!(class, "units could not be given back; they stay taken");
                        return;
                    }
                    Err(_) => sleep(PAUSE).await,
                }
                pending = client.submit(request.clone(), time, Instant::now() + timeout);
            }
        });
    }
}
