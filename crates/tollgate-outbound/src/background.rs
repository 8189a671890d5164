//! Work that goes on without its caller, such as the release of a permit.

use std::future::{Future, pending};
use std::panic::resume_unwind;
use std::task::{Context, Poll, Waker};

/// Runs a future: inline if it is ready immediately, as with counters in memory, otherwise in a task. Without a runtime
/// it is dropped, and what it would have released expires.
pub(crate) fn run(work: impl Future<Output = ()> + Send + 'static) {
    let mut work = Box::pin(work);
    if work.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending()
        && let Ok(runtime) = tokio::runtime::Handle::try_current()
    {
        runtime.spawn(work);
    }
}

/// Runs a future to its end, in a task if it is not ready immediately. If the caller goes away meanwhile, the result is
/// dropped when it is there. Without a runtime the future ends with its caller.
pub(crate) async fn to_its_end<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> T {
    let mut work = Box::pin(work);
    if let Poll::Ready(result) = work.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        return result;
    }
    let Ok(runtime) = tokio::runtime::Handle::try_current() else { return work.await };
    match runtime.spawn(work).await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            // The runtime ends, and the caller with it.
            Err(_) => pending().await,
        },
    }
}
