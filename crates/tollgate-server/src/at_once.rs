//! Futures that never wait, as those on memory: asked once, without a runtime. For tests and fuzz targets.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

/// What a future says at once.
///
/// # Panics
/// When it waits.
#[allow(clippy::panic, reason = "a broken promise is told by a panic")]
pub(crate) fn at_once<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("memory does not wait"),
    }
}
