//! Tasks that must not die: one that panics is started again, and said so.

use std::future::Future;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::sleep;

/// The pause before a task that panicked starts again.
const PAUSE: Duration = Duration::from_millis(500);

/// Runs a task until it returns, again and again if it panics.
pub(crate) fn supervise<F, T>(runtime: &Handle, name: &'static str, make: F) -> AbortHandle
where
    F: Fn() -> T + Send + 'static,
    T: Future<Output = ()> + Send + 'static,
{
    let watched = async move {
        loop {
            // A set ends its tasks when it is dropped: ending the supervisor ends what it watches.
            let mut one = JoinSet::new();
            one.spawn(make());
            match one.join_next().await {
                Some(Err(error)) if error.is_panic() => {
                    tracing::error!(task = name, "a task of the store panicked and is started again");
                    sleep(PAUSE).await;
                }
                _ => return,
            }
        }
    };
    runtime.spawn(watched).abort_handle()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// A task that panics twice is there a third time.
    #[tokio::test]
    async fn panics_do_not_end_a_task() {
        let starts = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&starts);
        supervise(&Handle::current(), "test", move || {
            let start = counted.fetch_add(1, Ordering::Relaxed);
            async move { assert!(start >= 2, "a panic that the test wants") }
        });
        while starts.load(Ordering::Relaxed) < 3 {
            sleep(PAUSE).await;
        }
        sleep(PAUSE * 3).await;
        assert_eq!(starts.load(Ordering::Relaxed), 3);
    }
}
