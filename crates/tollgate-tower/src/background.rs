//! Work that no response waits for.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

/// Does something that need not be waited for: at once if it can be, as on memory, otherwise beside.
pub(crate) fn run(work: impl Future<Output = ()> + Send + 'static) {
    let mut work = Box::pin(work);
    let is_over = {
        let mut first = pin!(work.as_mut());
        matches!(first.as_mut().poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(()))
    };
    // Without a runtime nobody can go on with it, and what was held returns when it expires.
    if !is_over && let Ok(runtime) = tokio::runtime::Handle::try_current() {
        runtime.spawn(work);
    }
}
