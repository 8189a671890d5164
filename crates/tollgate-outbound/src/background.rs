//! Work for which no call waits, such as the release of a permit.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

/// Runs a future: inline if it is ready immediately, as with counters in memory, otherwise in a task. Without a runtime
/// it is dropped, and what it would have released expires.
pub(crate) fn run(work: impl Future<Output = ()> + Send + 'static) {
    let mut work = Box::pin(work);
    let is_over = {
        let first = pin!(work.as_mut());
        matches!(first.poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(()))
    };
    if !is_over && let Ok(runtime) = tokio::runtime::Handle::try_current() {
        runtime.spawn(work);
    }
}
