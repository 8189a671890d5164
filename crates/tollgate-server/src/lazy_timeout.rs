//! A timeout that costs nothing if the future does not wait.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

/// The output of a future within this time, or `None` if it takes longer. The timer is set only once the future waits,
/// which most never do.
pub(crate) async fn lazy_timeout<F: Future>(timeout: Duration, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let first_poll = poll_fn(|context| {
        Poll::Ready(match future.as_mut().poll(context) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        })
    });
    match first_poll.await {
        Some(output) => Some(output),
        None => tokio::time::timeout(timeout, future).await.ok(),
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{Instant, sleep};

    use super::*;

    /// A ready future completes without a timer. A slow future is given up in time, and not polled for ever.
    #[tokio::test(start_paused = true)]
    async fn a_slow_future_times_out() {
        let start = Instant::now();
        assert_eq!(lazy_timeout(Duration::ZERO, async { 1 }).await, Some(1));
        assert_eq!(lazy_timeout(Duration::from_secs(2), sleep(Duration::from_secs(1))).await, Some(()));
        assert_eq!(lazy_timeout(Duration::from_secs(2), sleep(Duration::from_secs(3))).await, None);
        assert_eq!(start.elapsed(), Duration::from_secs(3));
    }
}
