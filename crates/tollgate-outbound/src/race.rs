//! Futures of which the first to end counts, and a future that ends at a deadline.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;

use tollgate::{Clock, Timestamp};

/// The future that ended first, with its output.
pub(crate) enum First<A, B> {
    Left(A),
    Right(B),
}

/// The output of the future that ends first. The other can go on.
pub(crate) async fn first_of<A: Future, B: Future>(
    mut left: Pin<&mut A>,
    mut right: Pin<&mut B>,
) -> First<A::Output, B::Output> {
    poll_fn(|context| match left.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(First::Left(output)),
        Poll::Pending => right.as_mut().poll(context).map(First::Right),
    })
    .await
}

/// The output of the future in a list that ends first. The others are dropped.
#[cfg(feature = "redis")]
pub(crate) async fn first_in<F: Future>(futures: impl IntoIterator<Item = F>) -> F::Output {
    let mut futures: Vec<Pin<Box<F>>> = futures.into_iter().map(Box::pin).collect();
    poll_fn(|context| {
        let ended = futures.iter_mut().find_map(|future| match future.as_mut().poll(context) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        });
        ended.map_or(Poll::Pending, Poll::Ready)
    })
    .await
}

/// The output of a future, or `None` when the deadline comes first.
pub(crate) async fn until<T>(
    clock: &Clock,
    deadline: Option<Timestamp>,
    future: impl Future<Output = T>,
) -> Option<T> {
    let Some(deadline) = deadline else { return Some(future.await) };
    match first_of(pin!(future), pin!(clock.sleep_until(deadline))).await {
        First::Left(output) => Some(output),
        First::Right(()) => None,
    }
}
