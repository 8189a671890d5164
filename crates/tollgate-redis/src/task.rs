//! Background tasks that restart after a panic.

use std::future::Future;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::sleep;

/// The pause before a panicked task restarts.
const PAUSE: Duration = Duration::from_millis(500);

/// Runs a task until it returns. Restarts it if it panics.
pub(crate) fn supervise<F, T>(runtime: &Handle, name: &'static str, make: F) -> AbortHandle
where
    F: Fn() -> T + Send + 'static,
    T: Future<Output = ()> + Send + 'static,
{
    let watched = async move {
        loop {
            // Dropping the set aborts its task, so aborting the supervisor aborts what it supervises.
            let mut one = JoinSet::new();
            one.spawn(make());
            match one.join_next().await {
                Some(Err(error)) if error.is_panic() => {
                    tracing::error!(task = name, "a background task of the store panicked and restarts");
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

    /// A task that panics twice runs a third time.
    #[tokio::test]
    async fn panicked_tasks_restart() {
        let starts = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&starts);
        supervise(&Handle::current(), "test", move || {
            let start = counted.fetch_add(1, Ordering::Relaxed);
            async move { assert!(start >= 2, "an intended panic") }
        });
        while starts.load(Ordering::Relaxed) < 3 {
            sleep(PAUSE).await;
        }
        sleep(PAUSE * 3).await;
        assert_eq!(starts.load(Ordering::Relaxed), 3);
    }
}
