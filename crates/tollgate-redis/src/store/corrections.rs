//! Units on their way back to counters, off every decision's path. Bounded in number and in time: a unit that comes back late may be given
//! to a window that never missed it, so it stays taken instead.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};

use crate::link::{Failure, Link, Pending, Time};
use crate::script::Asked;

/// Corrections that may be on their way at a time.
const WAITING_MAX: u64 = 10_000;
/// How long one is tried, and how long each try may take at least.
const AGE_MAX: Duration = Duration::from_secs(1);
const TRY: Duration = Duration::from_millis(100);
/// The pause before it is tried again.
const PAUSE: Duration = Duration::from_millis(50);

pub(super) struct Corrections {
    link: Link,
    runtime: Handle,
    /// How long each try may take.
    patience: Duration,
    waiting: Arc<AtomicU64>,
}

/// Counts one as long as it lives, whatever becomes of its task.
struct Counted(Arc<AtomicU64>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Corrections {
    pub(super) fn new(link: Link, runtime: Handle, deadline: Duration) -> Self {
        Self { link, runtime, patience: TRY.max(deadline), waiting: Arc::default() }
    }

    pub(super) fn waiting(&self) -> u64 {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Sends it, and again as long as it provably was not executed: twice would be a gift.
    pub(super) fn send(&self, asked: Asked, time: Time) {
        let first = self.link.begin(asked.clone(), time, Instant::now() + self.patience);
        self.follow(asked, first, time);
    }

    /// Does the same for one that is already lined up.
    pub(super) fn follow(&self, asked: Asked, first: Result<Pending, Failure>, time: Time) {
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= WAITING_MAX {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            tracing::warn!("too many units are on their way back to the store; some stay taken");
            return;
        }
        let counted = Counted(Arc::clone(&self.waiting));
        let (link, patience) = (self.link.clone(), self.patience);
        self.runtime.spawn(async move {
            let _counted = counted;
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
                pending = link.begin(asked.clone(), time, Instant::now() + patience);
            }
        });
    }
}
