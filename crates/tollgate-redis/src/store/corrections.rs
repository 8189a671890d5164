//! Refunds in the background, off the path of decisions, bounded in number and in time. A late refund may go to a
//! window that never held the charge, so the units stay charged instead.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};

use crate::client::{Client, PendingReply};
use crate::reply::Failure;
use crate::script::{EncodedRequest, InjectedTime};

/// Maximum number of corrections in flight.
const WAITING_MAX: u64 = 10_000;
/// How long a correction is retried, and the minimum timeout of each attempt.
const AGE_MAX: Duration = Duration::from_secs(1);
const TIMEOUT_MIN: Duration = Duration::from_millis(100);
/// The pause before a retry.
const PAUSE: Duration = Duration::from_millis(50);

pub(super) struct Corrections {
    client: Client,
    runtime: Handle,
    /// Timeout of each attempt.
    timeout: Duration,
    waiting: Arc<AtomicU64>,
}

/// Counts one correction until dropped, whatever happens to its task.
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

    /// Sends a correction, and retries while it provably was not executed: a second execution would refund twice.
    pub(super) fn send(&self, request: EncodedRequest, time: InjectedTime) {
        let first = self.client.submit(request.clone(), time, Instant::now() + self.timeout);
        self.follow(request, first, time);
    }

    /// Retries a correction whose first attempt was already submitted.
    pub(super) fn follow(
        &self,
        request: EncodedRequest,
        first: Result<PendingReply, Failure>,
        time: InjectedTime,
    ) {
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= WAITING_MAX {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            tracing::warn!("too many refunds are in flight; some units stay charged");
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
                        tracing::warn!(class, "a refund failed; its units stay charged");
                        return;
                    }
                    Err(_) => sleep(PAUSE).await,
                }
                pending = client.submit(request.clone(), time, Instant::now() + timeout);
            }
        });
    }
}
