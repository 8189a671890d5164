//! A timeout that costs nothing if the future does not wait.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

/// The output of a future within this time, or `None` if it takes longer. The timer is set only once the future waits,
/// which most never do.
pub(crate) async fn within<F: Future>(patience: Duration, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let at_once = poll_fn(|context| {
        Poll::Ready(match future.as_mut().poll(context) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        })
    });
    match at_once.await {
        Some(output) => Some(output),
        None => tokio::time::timeout(patience, future).await.ok(),
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{Instant, sleep};

    use super::*;

    /// A ready future completes without a timer. A slow future is given up in time, and not polled for ever.
    #[tokio::test(start_paused = true)]
    async fn patience_ends() {
        let start = Instant::now();
        assert_eq!(within(Duration::ZERO, async { 1 }).await, Some(1));
        assert_eq!(within(Duration::from_secs(2), sleep(Duration::from_secs(1))).await, Some(()));
        assert_eq!(within(Duration::from_secs(2), sleep(Duration::from_secs(3))).await, None);
        assert_eq!(start.elapsed(), Duration::from_secs(3));
    }
}
