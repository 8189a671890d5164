//! Runs futures that never wait, such as those on memory: polls once, without a runtime. For tests and fuzz targets.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

/// The output of a future that is ready on its first poll.
///
/// # Panics
/// When it waits.
#[allow(clippy::panic, reason = "a future that waits is a bug of the caller")]
pub fn poll_once<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("memory does not wait"),
    }
}
