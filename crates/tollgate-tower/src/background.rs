//! Work for which no response waits, such as refunds and releases.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

/// Runs a future for which no caller waits: inline if it is ready immediately, as with counters in memory, otherwise in
/// a task.
pub(crate) fn run(work: impl Future<Output = ()> + Send + 'static) {
    let mut work = Box::pin(work);
    let is_over = {
        let mut first = pin!(work.as_mut());
        matches!(first.as_mut().poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(()))
    };
    // Without a runtime the future is dropped, and what it would have released expires.
    if !is_over && let Ok(runtime) = tokio::runtime::Handle::try_current() {
        runtime.spawn(work);
    }
}
